"""The whole gateway with real Codex: both APIs, parked and replayed, killed, and Codex as the client."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from doubles.judges import Judge
from toolwire.backends.codex import CodexBackend
from toolwire.conform.judge import fold
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Api
from toolwire.gateway.parked import Parking
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import ModelSettings, ParkedSettings, Settings

Make = Callable[..., CodexBackend]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("get_weather", "get_time", "write")
]
FLAT_TOOLS = [
    {"type": "function", "name": name, "parameters": SCHEMA} for name in ("get_weather", "get_time", "write")
]


def ask(api: Api, question: str = "Weather?", **extra: Any) -> dict[str, Any]:
    if api == "chat":
        return {
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": question}],
            "tools": CHAT_TOOLS,
            **extra,
        }
    return {
        "instructions": "Be kind.",
        "input": [{"role": "user", "content": question}],
        "tools": FLAT_TOOLS,
        "store": False,
        **extra,
    }


def calls_of(api: Api, body: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Id, name and arguments of the calls."""
    if api == "chat":
        return [
            (one["id"], one["function"]["name"], one["function"]["arguments"])
            for one in body["choices"][0]["message"].get("tool_calls") or []
        ]
    return [
        (item["call_id"], item["name"], item["arguments"])
        for item in body["output"]
        if item["type"] == "function_call"
    ]


def text_of(api: Api, body: dict[str, Any]) -> str:
    if api == "chat":
        return body["choices"][0]["message"]["content"] or ""
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
    )


def follow_up(api: Api, request: dict[str, Any], body: dict[str, Any], *results: str) -> dict[str, Any]:
    """The next request as clients write it, with the arguments serialized again."""
    calls = calls_of(api, body)
    answers = list(zip(calls, results, strict=False))
    if api == "chat":
        message = body["choices"][0]["message"]
        made = [
            {
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(json.loads(text))},
            }
            for id, name, text in calls
        ]
        assistant = {"role": "assistant", "content": message["content"] or "", "tool_calls": made}
        outputs = [{"role": "tool", "tool_call_id": id, "content": result} for (id, _, _), result in answers]
        return {**request, "messages": [*request["messages"], assistant, *outputs]}
    outputs = [
        {"type": "function_call_output", "call_id": id, "output": result} for (id, _, _), result in answers
    ]
    return {**request, "input": [*request["input"], *body["output"], *outputs]}


async def send(
    table: Any, judge: Judge, api: Api, request: dict[str, Any], stream: bool
) -> tuple[dict[str, Any], str]:
    """The judged answer, and the turn's kind in the response header."""
    answer = await table.answer(api, {**request, "stream": stream})
    kind = dict(answer.headers)[b"x-toolwire-turn"].decode()
    if not stream:
        body: dict[str, Any] = json.loads(answer.body)
        judge.body(body, api)
        return body, kind
    raw = b"".join([block async for block in answer.stream])
    judge.stream(raw, api)
    return fold(raw, api), kind


def written(*calls: tuple[str, str], before: str = "") -> Any:
    """The answer of a model that only writes text: calls in the format of its instructions."""

    def answer(provider: Any) -> Any:
        async def play(exchange: Any) -> web.StreamResponse:
            found = re.search(r"<tool_call:([0-9a-z]+)>", json.dumps(exchange.body, ensure_ascii=False))
            assert found is not None
            blocks = "".join(
                f'<tool_call:{found[1]}>\n{{"name": "{name}", "arguments": {text}}}\n'
                f"</tool_call:{found[1]}>\n"
                for name, text in calls
            )
            response: web.StreamResponse = await provider.stream(exchange, provider.text(before + blocks))
            return response

        return play

    return answer


EVERYWHERE = [(api, stream) for api in ("chat", "responses") for stream in (False, True)]


# --- the current Codex ---


@pytest.mark.parametrize(("api", "stream"), EVERYWHERE)
async def test_a_tool_loop_is_one_run_over_two_requests(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any, api: Api, stream: bool
) -> None:
    provider.play(
        [*provider.text("Let me look."), *provider.call("get_weather", '{"city":  "Paris"}', "c1")],
        provider.text("It is sunny."),
    )
    table.serve(make(new_codex))
    request = ask(api)
    first, kind = await send(table, judge, api, request, stream)
    assert kind == "new" and text_of(api, first) == "Let me look."
    assert [call[1:] for call in calls_of(api, first)] == [("get_weather", '{"city":  "Paris"}')]
    second, kind = await send(table, judge, api, follow_up(api, request, first, "sunny"), stream)
    assert (kind, text_of(api, second)) == ("resumed", "It is sunny.")
    assert len(provider.seen) == 2 and provider.seen[1].outputs() == {"c1": "sunny"}
    assert (
        provider.seen[0].body["prompt_cache_key"] == provider.seen[1].body["prompt_cache_key"]
    )  # the same thread
    assert provider.seen[0].texts("developer") == ["Be kind."] and provider.seen[0].texts("user") == [
        "Weather?"
    ]
    assert sorted(provider.seen[0].tool_names()) == ["get_time", "get_weather", "write"]


async def test_three_parallel_calls_in_model_order(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any
) -> None:
    names = ["write", "get_weather", "get_time"]
    provider.play(
        [
            event
            for place, name in enumerate(names)
            for event in provider.call(name, f'{{"city":"{place}"}}', f"c{place}")
        ],
        provider.text("ok"),
    )
    table.serve(make(new_codex))
    for stream in (False, True):
        provider.play(
            [
                event
                for place, name in enumerate(names)
                for event in provider.call(name, f'{{"city":"{place}"}}', f"c{place}")
            ],
            provider.text("ok"),
        )
        request = ask("chat")
        first, _ = await send(table, judge, "chat", request, stream)
        assert [call[1:] for call in calls_of("chat", first)] == [
            (name, f'{{"city":"{place}"}}') for place, name in enumerate(names)
        ]
        second, kind = await send(
            table, judge, "chat", follow_up("chat", request, first, "a", "b", "c"), stream
        )
        assert (kind, text_of("chat", second)) == ("resumed", "ok")
        assert provider.seen[-1].outputs() == {"c0": "a", "c1": "b", "c2": "c"}


def _edited(request: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    changed = follow_up("chat", request, body, "sunny", "noon")
    return {
        **changed,
        "messages": [
            changed["messages"][0],
            {"role": "user", "content": "Weather, please?"},
            *changed["messages"][2:],
        ],
    }


COLD: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "edited history": _edited,
    "a missing result": lambda request, body: follow_up("chat", request, body, "sunny"),
}


@pytest.mark.parametrize(("api", "stream"), EVERYWHERE)
async def test_text_between_calls_does_not_stop_a_run_from_continuing(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any, api: Api, stream: bool
) -> None:
    one = [*provider.text("One."), *provider.call("get_weather", "{}", "c1")]
    provider.play(
        [*one, *provider.text("Two."), *provider.call("get_time", "{}", "c2")],
        provider.text("Both are there."),
    )
    table.serve(make(new_codex))
    first, _ = await send(table, judge, api, ask(api), stream)
    assert text_of(api, first) == "One.\n\nTwo." and len(calls_of(api, first)) == 2
    second, kind = await send(table, judge, api, follow_up(api, ask(api), first, "sunny", "noon"), stream)
    assert (kind, text_of(api, second), len(provider.seen)) == ("resumed", "Both are there.", 2)
    assert provider.seen[1].outputs() == {"c1": "sunny", "c2": "noon"}


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_after_a_forced_call_the_model_has_all_tools_again(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any, api: Api
) -> None:
    """As the Agents SDK continues: it omits `tool_choice` after the call."""
    provider.play(provider.call("get_time", "{}", "c1"), provider.call("get_weather", "{}", "c2"))
    table.serve(make(new_codex))
    forced = {
        "chat": {"type": "function", "function": {"name": "get_time"}},
        "responses": {"type": "function", "name": "get_time"},
    }[api]
    first, _ = await send(table, judge, api, ask(api, tool_choice=forced), False)
    assert provider.seen[0].tool_names() == ["get_time"]
    second, kind = await send(table, judge, api, follow_up(api, ask(api), first, "noon"), False)
    assert (kind, [name for _, name, _ in calls_of(api, second)]) == ("replayed", ["get_weather"])
    assert sorted(provider.seen[1].tool_names()) == ["get_time", "get_weather", "write"]
    assert not any("must call" in words for words in provider.seen[1].texts("developer"))


@pytest.mark.parametrize("why", [*COLD, "expired", "killed worker", "restarted gateway"])
async def test_a_run_that_cannot_continue_is_replayed_from_its_history(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any, why: str
) -> None:
    provider.play(
        [*provider.call("get_weather", "{}", "c1"), *provider.call("get_time", "{}", "c2")],
        provider.text("Both are there."),
    )
    backend = make(new_codex)
    table.serve(backend)
    if why == "expired":
        table.gateway.parking = Parking(ParkedSettings(ttl_s=0.05))
    request = ask("chat")
    first, _ = await send(table, judge, "chat", request, False)
    if why == "expired":
        async with asyncio.timeout(5):
            while len(table.gateway.parking):
                await asyncio.sleep(0.01)
    elif why == "killed worker":
        assert backend.pool is not None
        for worker in list(backend.pool.workers):
            os.killpg(worker.pid, signal.SIGKILL)
    elif why == "restarted gateway":
        await table.gateway.close()
        table.serve(make(new_codex))
    following = (
        COLD[why](request, first) if why in COLD else follow_up("chat", request, first, "sunny", "noon")
    )
    second, kind = await send(table, judge, "chat", following, False)
    assert (text_of("chat", second), kind) == ("Both are there.", "replayed")
    outputs = provider.seen[-1].outputs()
    assert "sunny" in outputs.values() and len(outputs) == 2
    assert len(table.gateway.parking) == 0


async def test_a_run_continues_after_a_long_park(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any
) -> None:
    wait = float(os.environ.get("TOOLWIRE_LONG_PARK_S", "10"))
    provider.play(provider.call("get_weather", "{}", "c1"), provider.text("At last."))
    table.serve(make(new_codex))
    request = ask("responses")
    first, _ = await send(table, judge, "responses", request, True)
    await asyncio.sleep(wait)
    second, kind = await send(
        table, judge, "responses", follow_up("responses", request, first, "sunny"), True
    )
    assert (text_of("responses", second), kind, len(provider.seen)) == ("At last.", "resumed", 2)


async def test_32_turns_at_once_are_neither_lost_nor_mixed(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any
) -> None:
    async def play(exchange: Any) -> web.StreamResponse:
        number = exchange.texts("user")[0].split()[-1]
        results = exchange.outputs()
        events = (
            provider.text(f"{number} got {next(iter(results.values()))}")
            if results
            else provider.call("write", f'{{"city":"{number}"}}', f"c{number}")
        )
        response: web.StreamResponse = await provider.stream(exchange, events)
        return response

    provider.play(play)
    table.serve(make(new_codex))

    async def loop(number: int) -> tuple[str, str]:
        request = ask("chat", f"number {number}")
        first, _ = await send(table, judge, "chat", request, number % 2 == 0)
        assert calls_of("chat", first)[0][2] == f'{{"city":"{number}"}}'
        second, kind = await send(
            table, judge, "chat", follow_up("chat", request, first, f"r{number}"), number % 2 == 1
        )
        return text_of("chat", second), kind

    async with asyncio.timeout(100):
        outcomes = await asyncio.gather(*(loop(number) for number in range(32)))
    assert outcomes == [(f"{number} got r{number}", "resumed") for number in range(32)]
    assert len(provider.seen) == 64 and len(table.gateway.parking) == 0


async def test_kill_9_at_random_moments_gives_an_answer_or_one_clear_error(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any
) -> None:
    rounds = int(os.environ.get("TOOLWIRE_KILL_ROUNDS", "5"))
    chance = random.Random(int(os.environ.get("TOOLWIRE_KILL_SEED", "11")))
    others = _codexes()
    backend = make(new_codex)
    table.serve(backend)
    outcomes: dict[str, int] = {}

    async def slowly(exchange: Any) -> web.StreamResponse:
        response: web.StreamResponse = await provider.stream(exchange, provider.text("one "), end=False)
        await asyncio.sleep(0.05)
        for event in (
            provider.call("get_weather", "{}", "c1")
            if not exchange.outputs()
            else provider.text("done", id="msg_2")
        ):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await response.write(
            f"event: response.completed\ndata: {json.dumps(provider.completed())}\n\n".encode()
        )
        return response

    async def kill(after: float) -> None:
        await asyncio.sleep(after)
        for worker in list(backend.pool.workers) if backend.pool is not None else ():
            if worker.pid:
                os.killpg(worker.pid, signal.SIGKILL)

    for number in range(rounds):
        provider.play(slowly)
        killing = asyncio.ensure_future(kill(chance.uniform(0, 0.4)))
        request = ask("chat")
        try:
            async with asyncio.timeout(30):
                first = fold(await table.stream("chat", request), "chat")
                if "error" not in first:
                    second = fold(await table.stream("chat", follow_up("chat", request, first, "x")), "chat")
                    outcome = "error in the stream" if "error" in second else "answered"
                    assert outcome != "answered" or "done" in text_of("chat", second)
                else:
                    outcome = "error in the stream"
        except ToolwireError as error:
            assert error.failure.message
            outcome = "HTTP error"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        await killing
        async with asyncio.timeout(30):  # the next request works on a new worker
            while True:
                try:
                    provider.play(provider.text(f"alive {number}"))
                    assert text_of("chat", await table.body("chat", ask("chat"))) == f"alive {number}"
                    break
                except ToolwireError as error:
                    if error.failure.kind not in ("backend_unavailable", "backend_cut"):
                        raise
                    await asyncio.sleep(error.failure.retry_after_s or 0.2)
    assert sum(outcomes.values()) == rounds and len(table.gateway.parking) == 0
    await table.gateway.close()
    assert _codexes() <= others
    print("outcomes:", ", ".join(f"{outcome}: {count}" for outcome, count in outcomes.items()))


def _codexes() -> set[str]:
    """This process's children that belong to Codex; other tests may have servers too."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in children if "codex" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")}


# --- the Codex of the first proxies ---


@pytest.mark.parametrize(("api", "stream"), EVERYWHERE)
async def test_a_codex_without_tools_is_taught_them(
    table: Any, judge: Judge, make: Make, old_codex: str, provider: Any, api: Api, stream: bool
) -> None:
    provider.play(
        written(("get_weather", '{"city":  "Paris"}'), ("get_time", "{}"), before="Let me look.\n")(provider),
        provider.text("It is sunny."),
    )
    table.serve(make(old_codex))
    request = ask(api)
    first, kind = await send(table, judge, api, request, stream)
    assert [call[1:] for call in calls_of(api, first)] == [
        ("get_weather", '{"city":  "Paris"}'),
        ("get_time", "{}"),
    ]
    second, kind = await send(table, judge, api, follow_up(api, request, first, "sunny", "noon"), stream)
    assert (kind, text_of(api, second)) == ("new", "It is sunny.")
    assert "sunny" in json.dumps(provider.seen[1].body)
    instructions = provider.seen[0].body.get("instructions") or ""
    assert "tool_call" not in instructions and any(
        "# Tools" in text for text in provider.seen[0].texts("developer")
    )


async def test_names_that_codex_does_not_take_travel_under_another(
    table: Any, judge: Judge, make: Make, new_codex: str, provider: Any
) -> None:
    names = ["exec_command", "shell_command", "mcp__a__b", "a.b", "x" * 100, "plain"]
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in names]

    async def play(exchange: Any) -> web.StreamResponse:
        events = provider.text("ok")
        if not exchange.outputs():
            events = [
                event
                for place, name in enumerate(exchange.tool_names())
                for event in provider.call(name, "{}", f"c{place}")
            ]
        response: web.StreamResponse = await provider.stream(exchange, events)
        return response

    provider.play(play)
    table.serve(make(new_codex))
    request = ask("chat", tools=tools)
    first, _ = await send(table, judge, "chat", request, True)
    assert sorted(call[1] for call in calls_of("chat", first)) == sorted(names)
    following = follow_up("chat", request, first, *"abcdef")
    assert (await send(table, judge, "chat", following, False))[1] == "resumed"
    assert (await send(table, judge, "chat", following, False))[1] == "replayed"
    replayed = [item["name"] for item in provider.seen[-1].input if item["type"] == "function_call"]
    assert sorted(replayed) == sorted(provider.seen[-1].tool_names())


# --- names ---


async def test_a_model_has_a_name_for_each_effort_and_the_names_of_older_proxies(
    table: Any, make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.text("hi"))
    gateway = Gateway(Settings(), backends={"codex": make(new_codex)})
    assert gateway.catalog.listed()[:3] == ["codex", "codex-low", "codex-medium"]
    table.gateway = gateway
    for name, effort in (
        ("codex-high", "high"),
        ("gpt-5.2-codex-L", "low"),
        ("codex-5-medium", "medium"),
        ("codex", None),
    ):
        body = await table.body("chat", {"model": name, "messages": [{"role": "user", "content": "?"}]})
        assert body["model"] == name
        assert (provider.seen[-1].body.get("reasoning") or {}).get("effort") in (
            (effort,) if effort else (None, "low", "medium", "high")
        )
    with pytest.raises(ToolwireError, match="does not exist"):
        await table.body("chat", {"model": "codex-9000", "messages": [{"role": "user", "content": "?"}]})


# --- Codex on both sides ---


async def test_codex_exec_edits_a_file_through_toolwire_and_codex_app_server(
    on_a_socket: Callable[..., Any], make: Make, new_codex: str, provider: Any, tmp_path: Path
) -> None:
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (folder / "note.txt").write_text("old words\n")

    async def play(exchange: Any) -> web.StreamResponse:
        name = next(name for name in exchange.tool_names() if "exec_command" in name)
        changing = provider.call(
            name, json.dumps({"cmd": "sed -i s/old/new/ note.txt && cat note.txt"}), "c1"
        )
        events = provider.text("The note is changed.") if exchange.outputs() else changing
        response: web.StreamResponse = await provider.stream(exchange, events)
        return response

    provider.play(play)
    settings = Settings(models=(ModelSettings("codex", "codex"),))
    async with on_a_socket(Gateway(settings, backends={"codex": make(new_codex)}), settings) as root:
        url = root + "/v1"
        (home / "config.toml").write_text(
            'model = "codex"\nmodel_provider = "toolwire"\napproval_policy = "never"\n'
            'sandbox_mode = "danger-full-access"\n'
            'check_for_update_on_startup = false\n[model_providers.toolwire]\nname = "Toolwire"\n'
            f'base_url = "{url}"\nwire_api = "responses"\n'
            "request_max_retries = 0\nstream_max_retries = 0\n[features]\nplugins = false\n[analytics]\n"
            "enabled = false\n"
        )
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)}
        child = await asyncio.create_subprocess_exec(
            new_codex,
            "exec",
            "--skip-git-repo-check",
            "Change the note.",
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(90):
                said = (await child.communicate())[0].decode()
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
    assert (folder / "note.txt").read_text() == "new words\n", said
    assert "The note is changed." in said and child.returncode == 0
