"""The wire page in Chromium: a client's turns appear live and can be inspected, exported and replayed."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam
from playwright.sync_api import Locator, Page, expect

WEATHER = 'call get_weather {"city": "Paris"}\n---\nsay It is {result}.\nusage 9 5'
MODELS: dict[str, Any] = {
    "m": {"script": "chunk 6\nsay Hello there, dear friend.\nusage 7 3"},
    "native": {"script": WEATHER},
    "emulated": {
        "script": f"think The person wants the weather.\nsay Let me look.\n{WEATHER}",
        "tools": "emulated",
    },
    "waits": {"script": WEATHER, "tools": "parked"},
    "hangs": {"script": "say First words.\nhang"},
    "breaks": {"script": "say Half of\nfail backend The upstream fell over."},
    "refuses": {"script": "fail rate_limit Too many of you."},
    "echoes": {"script": "chunk 5\nsay {user}"},
}
CITY: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
SECRET, KEY = "sk-proj-abcdefghijklmnop1234567890", "a-server-key-of-some-length"


def ask(site: Any, model: str, messages: list[Any] | None = None, key: str = "", **more: Any) -> str:
    """One turn over the API. Returns the raw answer, with any status."""
    body = json.dumps({"model": model, "messages": messages or [QUESTION], **more}).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{site.url}/v1/chat/completions", body, headers), timeout=20
        ) as answer:
            raw: bytes = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raw = error.read()
    return raw.decode()


def row(page: Page, cell: str) -> Locator:
    """The turns of a model, or only those with this call."""
    return (
        page.get_by_role("table", name="Turns")
        .get_by_role("row")
        .filter(has=page.get_by_role("cell", name=cell, exact=True))
    )


def look(page: Page, cell: str) -> None:
    """Opens the newest of them."""
    row(page, cell).first.get_by_role("link").click()
    expect(page.get_by_role("tab", name="Overview")).to_be_visible()


def pick(page: Page, tab: str) -> Locator:
    page.get_by_role("tab", name=tab).click()
    return page.get_by_role("tabpanel")


def fact(page: Page, name: str) -> Locator:
    """What the overview shows for this."""
    return page.get_by_role("tabpanel").locator(f"dt:text-is({json.dumps(name)}) + dd")


def total(page: Page, name: str) -> Locator:
    """A number above the charts."""
    return page.get_by_role("main").locator(f"dt:text-is({json.dumps(name)}) + dd")


def fetched(page: Page, path: str) -> Any:
    return page.evaluate(
        "path => fetch('/ui/api' + path, {headers: {'x-toolwire-page': "
        "localStorage.getItem('toolwire-page')}}).then(answer => answer.json())",
        path,
    )


def test_turns_of_a_client_appear_while_they_run_and_end_before_ones_eyes(site: Any, browse: Any) -> None:
    here = site(MODELS)
    browsing = browse(here)
    page = browsing.tab("/ui/wire")
    expect(page.get_by_role("heading", name="No turns yet")).to_be_visible()
    command = page.locator("pre").inner_text()
    assert subprocess.run(["bash", "-c", command], capture_output=True, timeout=20).stdout.endswith(
        b"data: [DONE]\n\n"
    )
    expect(row(page, "m")).to_have_count(1)

    watched = browsing.tab()
    page.bring_to_front()
    with closing(http.client.HTTPConnection("127.0.0.1", here.port, timeout=20)) as line:
        line.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": "hangs", "stream": True, "messages": [QUESTION]}),
        )
        with line.getresponse() as answer:
            assert answer.readline()
            expect(row(page, "hangs")).to_contain_text("running")
            page.get_by_role("combobox", name="Status").select_option("Running")
            expect(row(page, "m")).to_have_count(0)
            expect(row(page, "hangs")).to_have_count(1)
            page.get_by_role("combobox", name="Status").select_option("Any status")
            expect(row(page, "m")).to_have_count(1)
            watched.goto(here.url + (row(page, "hangs").get_by_role("link").get_attribute("href") or ""))
            expect(watched.get_by_role("tab", name="Events 1")).to_be_visible()
            expect(watched.get_by_text("running", exact=True).first).to_be_visible()
    expect(row(page, "hangs")).to_contain_text("cancelled")
    expect(fact(watched, "Cancelled")).to_have_text("yes, by the client")

    tool: FunctionToolParam = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}
    with openai.OpenAI(base_url=f"{here.url}/v1", api_key="unused") as client:
        said = client.responses.create(model="native", input="Weather?", tools=[tool])
    assert said.output[0].type == "function_call"
    for words in ("native", "Responses", "get_weather", "tool calls"):
        expect(row(page, "native")).to_contain_text(words)


def test_a_turn_of_an_emulated_model_can_be_seen_from_the_request_to_the_clients_bytes(
    site: Any, browse: Any
) -> None:
    here = site(MODELS)
    raw = ask(here, "emulated", tools=TOOLS, stream=True, seed=3, temperature=0.5)
    page = browse(here).tab("/ui/wire")
    look(page, "emulated")
    id = page.url.rpartition("/")[2]
    turn = fetched(page, f"/turns/{id}")

    expect(page.get_by_role("tabpanel")).to_contain_text("Toolwire described the tools in the prompt")
    expect(fact(page, "Finish reason")).to_have_text("tool_calls")
    expect(fact(page, "Turn ID")).to_have_text(id)
    expect(fact(page, "Calls")).to_contain_text(turn["got"]["calls"][0]["id"])
    report = page.get_by_role("region", name="Fields of the request").get_by_role("row")
    expect(report.filter(has_text="tools")).to_contain_text("emulated")
    expect(report.filter(has_text="seed")).to_contain_text("ignored")
    expect(report.filter(has_text="messages")).to_contain_text("honoured")

    drawing = page.get_by_role("region", name="Timeline")
    expect(drawing.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"^Timeline of .* 1 call\.$")
    )
    drawing.get_by_text("Timeline as a table").click()
    expect(drawing.get_by_role("row").filter(has_text="Call 1: get_weather")).to_have_count(1)
    expect(drawing.get_by_role("row").filter(has_text="waiting for the backend")).to_have_count(1)

    request = pick(page, "Request")
    for words in ('"temperature": 0.5', "What is the weather in Paris?", "as the backend received it"):
        expect(request).to_contain_text(words)
    for kind, tab, words in (
        ("frames", "From backend", "<tool_call"),
        ("events", "Events", "get_weather"),
        ("wire", "To client", "tool_calls"),
    ):
        panel = pick(page, tab)
        rows = panel.get_by_role("option")
        expect(rows).to_have_count(turn["counts"][kind])
        panel.get_by_role("searchbox").fill(words)
        expect(panel.get_by_role("status")).to_contain_text("match")
        expect(panel.get_by_role("region", name=re.compile("whole$"))).to_contain_text(words)
    blocks = raw.strip().split("\n\n")
    expect(rows).to_have_count(len(blocks))
    panel.get_by_role("listbox").focus()
    page.keyboard.press("End")
    expect(panel.get_by_role("region", name=f"Block {len(blocks)}, whole")).to_have_text("data: [DONE]")

    sides = pick(page, "Side by side")
    wrote, got = (
        sides.get_by_role("region", name="What the model wrote"),
        page.locator("section").filter(has_text="What the client received").last,
    )
    expect(wrote).to_contain_text("Let me look.")
    expect(wrote.locator("mark").filter(has_text="get_weather")).to_contain_text("<tool_call")
    expect(wrote.locator("mark").filter(has_text="get_weather")).not_to_contain_text("Let me look.")
    expect(got).to_contain_text(turn["got"]["calls"][0]["id"])
    expect(got.get_by_role("region", name="Arguments of call 1")).to_have_text(
        re.compile(r'\{\s*"city": "Paris"\s*\}')
    )
    wrote.get_by_role("button", name="Call 1, get_weather: show what the client received").click()
    expect(got.locator(":focus")).to_contain_text("get_weather")
    page.reload()
    expect(page.get_by_role("tab", name="Side by side")).to_have_attribute("aria-selected", "true")


def test_of_an_answer_with_several_choices_every_call_is_drawn(site: Any, browse: Any) -> None:
    here = site(MODELS)
    assert len(json.loads(ask(here, "native", tools=TOOLS, n=2))["choices"]) == 2
    page = browse(here).tab("/ui/wire")
    look(page, "native")
    drawing = page.get_by_role("region", name="Timeline")
    expect(drawing.get_by_role("img")).to_have_attribute("aria-label", re.compile(r" 2 calls\.$"))
    drawing.get_by_text("Timeline as a table").click()
    calls = drawing.get_by_role("row").filter(has_text="Call 1: get_weather")
    expect(calls).to_have_count(2)
    expect(calls.filter(has_text="not ended")).to_have_count(0)
    expect(
        pick(page, "Side by side").get_by_role("region", name=re.compile("^Arguments of call"))
    ).to_have_count(2)


def test_a_parked_turn_and_the_one_that_resumed_it_lead_to_each_other_with_the_time_between(
    site: Any, browse: Any
) -> None:
    here = site(MODELS)
    called = json.loads(ask(here, "waits", tools=TOOLS))["choices"][0]["message"]
    browsing = browse(here)
    page = browsing.tab("/ui/wire")
    page.get_by_role("combobox", name="Status").select_option("Run was parked")
    expect(row(page, "get_weather")).to_contain_text("run was parked")
    look(page, "get_weather")
    expect(page.get_by_text("waits for results", exact=True)).to_be_visible()
    expect(fact(page, "Wait after this turn")).to_have_text("still parked, until the results arrive")
    first = page.url.rpartition("/")[2]

    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "sunny"}
    assert "It is sunny." in ask(here, "waits", [QUESTION, called, result], tools=TOOLS)
    page.reload()
    waited = fetched(page, f"/turns/{first}")["parked"][0]
    expect(fact(page, "Wait after this turn")).to_have_text(re.compile(r"^[\d.]+ (ms|s)$"))
    expect(page.get_by_text("waits for results", exact=True)).to_have_count(0)
    drawing = page.get_by_role("region", name="Timeline")
    expect(drawing.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"1 call\. Run parked for [\d.]+ m?s after this turn\.$")
    )
    drawing.get_by_text("Timeline as a table").click()
    expect(
        drawing.get_by_role("row").filter(has_text="Run parked until another request brings the results")
    ).to_have_count(1)

    fact(page, "Continued by turn").get_by_role("link").click()
    expect(fact(page, "Kind")).to_contain_text("resumed")
    second = page.url.rpartition("/")[2]
    later = fetched(page, f"/turns/{second}")
    assert second == waited["turn"] and later["parked_ms"] == pytest.approx(
        waited["to_ms"] - waited["from_ms"], abs=0.01
    )
    expect(drawing.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"Run parked for [\d.]+ m?s before this turn\.$")
    )
    fact(page, "Continuation of turn").get_by_role("link").click()
    expect(page).to_have_url(re.compile(f"{first}$"))
    expect(page.get_by_role("region", name="Timeline").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("parked for .* after")
    )


def test_failures_are_shown_in_words_and_the_list_is_narrowed_by_end_model_and_tool(
    site: Any, browse: Any
) -> None:
    here = site(MODELS)
    for _ in range(52):
        ask(here, "m", max_tokens=50)
    ask(here, "breaks", stream=True)
    assert "Too many of you." in ask(here, "refuses")
    ask(here, "native", tools=TOOLS)
    browsing = browse(here)
    page = browsing.tab("/ui/wire")
    rows = page.get_by_role("table", name="Turns").get_by_role("row")
    expect(page.get_by_text("50 newest")).to_be_visible()
    page.get_by_role("button", name="Older turns").click()
    expect(rows).to_have_count(1 + 55)
    expect(page.get_by_role("button", name="Older turns")).to_be_hidden()

    page.get_by_role("combobox", name="Status").select_option("Failed")
    expect(rows).to_have_count(1 + 2)
    expect(row(page, "refuses")).to_contain_text("429 failed")
    ask(here, "m")
    ask(here, "refuses")
    expect(rows).to_have_count(1 + 3)  # only matching turns are added live
    page.get_by_role("combobox", name="Status").select_option("Any status")
    page.get_by_role("combobox", name="Tool").select_option("get_weather")
    expect(rows).to_have_count(1 + 1)
    assert "tool=get_weather" in page.url
    page.reload()
    expect(rows).to_have_count(1 + 1)
    page.get_by_role("combobox", name="Tool").select_option("All tools")
    page.get_by_role("combobox", name="Model").select_option("m")
    expect(page.get_by_text("50 newest")).to_be_visible()
    page.get_by_role("button", name="Older turns").click()
    expect(rows).to_have_count(1 + 53)  # of m, not of every model with that letter
    page.get_by_role("combobox", name="Status").select_option("Cancelled")
    page.get_by_role("button", name="Show all turns").click()

    look(page, "breaks")
    expect(page.get_by_role("alert")).to_have_text("backend: The upstream fell over.")
    expect(fact(page, "Error")).to_have_text("backend: The upstream fell over.")
    expect(pick(page, "To client").get_by_role("option").last).to_contain_text("The upstream fell over.")
    expect(pick(page, "Side by side")).to_contain_text("Half of")
    page.get_by_role("link", name="All turns").click()
    look(page, "refuses")
    expect(page.get_by_role("alert")).to_have_text("rate_limit: Too many of you.")
    browsing.expected.append("404")
    page.goto(f"{here.url}/ui/wire/turn_0123456789abcdef")
    expect(page.get_by_role("heading", name="This turn is not in the journal")).to_be_visible()


def test_a_turn_is_copied_as_curl_downloaded_and_replayed_without_its_secrets(
    site: Any, browse: Any, tmp_path: Path
) -> None:
    here = site(MODELS, server={"keys": [KEY]})
    words = f"""My keys are {SECRET} and {KEY}; it's "quoted" $HOME `id`"""
    ask(here, "emulated", [{"role": "user", "content": words}], key=KEY, tools=TOOLS, stream=True)
    browsing = browse(here)
    browsing.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=here.url)
    page = browsing.tab("/ui/wire")
    look(page, "emulated")
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    ran = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "TOOLWIRE_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (
        ran.returncode == 0
        and '"name":"get_weather"' in ran.stdout
        and ran.stdout.endswith("data: [DONE]\n\n")
    )
    again = fetched(page, "/turns?limit=1")["turns"][0]
    assert fetched(page, f"/turns/{again['id']}")["request"]["messages"][0]["content"] == words.replace(
        SECRET, "***"
    ).replace(KEY, "***")

    with page.expect_download() as started:
        page.get_by_role("link", name="Download fixture").click()
    file = tmp_path / started.value.suggested_filename
    started.value.save_as(file)
    replayed = subprocess.run(
        [sys.executable, "-m", "toolwire", "replay", str(file)], capture_output=True, text=True, timeout=60
    )
    assert (replayed.returncode, replayed.stdout) == (
        0,
        "same: the client would receive the same response\n",
    ), replayed
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status").filter(has_text="No difference")).to_be_visible()

    seen = command + file.read_text()
    for tab in ("Request", "From backend", "Events", "To client", "Side by side", "Overview"):
        expect(pick(page, tab)).to_be_visible()
        seen += page.content()
    seen += json.dumps(
        [
            fetched(page, f"/turns/{again['id']}{path}")
            for path in ("", "/frames?kind=frames", "/frames?kind=events", "/frames?kind=wire")
        ]
    )
    assert SECRET not in seen and KEY not in seen

    raw = ask(here, "echoes", [{"role": "user", "content": words}], key=KEY, stream=True)
    assert SECRET in "".join(
        json.loads(one)["choices"][0]["delta"].get("content") or ""
        for one in re.findall(r"data: (\{.*)", raw)
    )
    page.get_by_role("link", name="All turns").click()
    look(page, "echoes")
    id = page.url.rpartition("/")[2]
    for kind in ("frames", "events", "wire"):  # it came in chunks, and no two of them may complete it
        joined = "".join(
            re.sub(r"[^\w-]", "", text)
            for _, _, text in fetched(page, f"/turns/{id}/frames?kind={kind}")["rows"]
        )
        assert not any(SECRET[place : place + 8] in joined for place in range(3, len(SECRET) - 8)), (
            kind,
            joined,
        )
    expect(pick(page, "Side by side")).to_contain_text("My keys are *** and ***;")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status").filter(has_text="No difference")).to_be_visible()


def test_contents_go_with_a_restart_unless_they_are_kept_on_disk(site: Any, browse: Any) -> None:
    here = site(MODELS)
    browsing = browse(here)
    ask(here, "native", tools=TOOLS)
    here.stop()
    here.config["journal"] = {"contents": "disk"}
    here.start()
    page = browsing.tab("/ui/wire")
    look(page, "native")
    expect(page.get_by_text("metadata only")).to_be_visible()
    expect(fact(page, "Finish reason")).to_have_text("tool_calls")
    for name in ("Copy as curl", "Download fixture", "Replay"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    for tab in ("Request", "From backend", "Events", "To client", "Side by side"):
        panel = pick(page, tab)
        expect(panel.get_by_role("heading", name="Only the metadata of this turn is kept")).to_be_visible()
        expect(panel).to_contain_text('contents = "disk"')
    page.close()

    ask(here, "emulated", tools=TOOLS)
    here.stop()
    here.start()
    page = browsing.tab("/ui/wire")
    look(page, "emulated")
    expect(page.get_by_role("button", name="Copy as curl")).to_be_enabled()
    expect(pick(page, "Side by side")).to_contain_text("Let me look.")
    page.get_by_role("button", name="Replay").click()
    expect(page.get_by_role("status").filter(has_text="No difference")).to_be_visible()
    kept = here.folder / "journal" / "turns" / f"{page.url.rpartition('/')[2].partition('#')[0]}.jsonl"
    lines = [
        line.replace("Paris", "Rome") if '"kind":"wire"' in line else line
        for line in kept.read_text().splitlines(keepends=True)
    ]
    kept.write_text("".join(lines))  # as if the client had received something else then
    page.get_by_role("button", name="Replay").click()
    found = page.get_by_role("region", name="Differences").get_by_role("row").last
    expect(page.get_by_role("heading", name="Replay of the recording: 1 difference")).to_be_visible()
    expect(found.locator("mark")).to_have_text(["Rome", "Paris"])
    expect(found).to_contain_text("arguments")
    files = [path for path in (here.folder / "journal").rglob("*") if path.is_file()]
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_is_no_wider_than_the_screen(site: Any, browse: Any, width: int) -> None:
    here = site(MODELS)
    ask(here, "native", tools=TOOLS)
    page = browse(here, width=width).tab("/ui/wire")
    expect(total(page, "Requests")).to_have_text("1")
    expect(
        page.get_by_role("group", name="Charts").get_by_role("img", name=re.compile("^Requests: 1 in all"))
    ).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_charts_show_the_numbers_of_what_was_asked(site: Any, browse: Any) -> None:
    here = site(MODELS)
    for _ in range(3):
        ask(here, "m")
    ask(here, "native", tools=TOOLS)
    ask(here, "waits", tools=TOOLS)
    ask(here, "refuses")
    page = browse(here).tab("/ui/wire")
    for name, value in (("Requests", "6"), ("Errors", "1"), ("Calls", "2"), ("Parked runs", "1")):
        expect(total(page, name)).to_have_text(value)
    sums = fetched(page, "/charts?window=24h")["totals"]
    turns = fetched(page, "/turns")["turns"]
    for name, member in (("tokens_in", "input_tokens"), ("tokens_out", "output_tokens")):
        assert sums[name] == sum(turn[member] for turn in turns)
    expect(total(page, "Tokens")).to_have_text(f"{sums['tokens_in']} in · {sums['tokens_out']} out")
    times = sorted(
        turn["first_byte_ms"] for turn in turns if turn["first_byte_ms"] is not None and not turn["error"]
    )
    assert (sums["ttft_ms_p50"], sums["ttft_ms_p95"]) == (times[len(times) // 2], times[-1])

    charts = page.get_by_role("group", name="Charts")
    expect(charts.get_by_role("img", name=re.compile("^Requests: 6 in all"))).to_be_visible()
    expect(charts.get_by_role("img", name=re.compile("^Errors: 1 in all"))).to_be_visible()
    expect(charts.get_by_role("img", name=re.compile("^Parked runs: 1 in all"))).to_be_visible()
    expect(
        charts.get_by_role("img", name=re.compile("^Time to first byte: p50 between .* ms"))
    ).to_be_visible()
    for chart, first in (("Calls by tool", "get_weather 2 calls"), ("By model", "m 3 requests")):
        ranked = (
            charts.get_by_role("figure").filter(has_text=chart).get_by_role("listitem").first.inner_text()
        )
        assert " ".join(ranked.split()).startswith(first)
    page.get_by_role("button", name="Hour").click()
    expect(page.get_by_role("button", name="Hour")).to_have_attribute("aria-pressed", "true")
    expect(charts.get_by_role("img", name=re.compile("^Requests: 6 in all"))).to_be_visible()
    charts.get_by_text("Data for Requests").click()
    numbers = page.get_by_role("region", name="Data for Requests").get_by_role("cell")
    expect(numbers.first).to_be_visible()
    cells = numbers.all_inner_texts()
    assert sum(int(count) for count in cells[1::2]) == 6
    page.get_by_role("button", name="m", exact=True).click()  # of "By model"
    expect(total(page, "Requests")).to_have_text("3")
    expect(page.get_by_role("table", name="Turns").get_by_role("row")).to_have_count(1 + 3)
    page.get_by_role("button", name="Hide charts").click()
    page.reload()
    expect(page.get_by_role("button", name="Show charts")).to_be_visible()
    expect(total(page, "Requests")).to_have_text("3")
