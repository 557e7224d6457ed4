"""The embedded model on a real file: calls match their schema, text streams, runs can be cancelled."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from doubles.schemas import tools
from toolwire.backends.local import LocalBackend, LocalOptions
from toolwire.backends.local.model import Chunk, Stream
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallEnd, Event, Failure, Finish, Text, Usage
from toolwire.core.turn import Constraint, Message, OutputFormat, Sampling, TextPart, ToolSpec, Turn
from toolwire.emulate.scanner import ToolCallParser
from toolwire.settings.extras import add_extra

NONCE = "k3v9"
OPENING, CLOSING = f"<tool_call:{NONCE}>\n", f"\n</tool_call:{NONCE}>"
WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 24},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
    },
)
SHOWN = f'{OPENING}{{"name": "get_weather", "arguments": {{"city": "Rome", "unit": "celsius"}}}}{CLOSING}'


def said(*words: str, **fields: Any) -> Turn:
    """A conversation that starts with the user."""
    items = tuple(
        Message("assistant" if place % 2 else "user", (TextPart(text),)) for place, text in enumerate(words)
    )
    return Turn("chat", "m", items, **fields)


def held(tool_list: Sequence[ToolSpec], required: bool, calls: int = 1, begun: str = "") -> Constraint:
    return Constraint(tuple(tool_list), OPENING, CLOSING, required, calls, begun)


async def events(backend: LocalBackend, turn: Turn) -> list[Event]:
    return [event async for batch in backend.run(turn) for event in batch]


def text(of: Sequence[Event]) -> str:
    return "".join(event.text for event in of if isinstance(event, Text))


# --- calls ---


async def fitting(backend: LocalBackend, tool: ToolSpec) -> None:
    """Requests a call of this tool, and checks its arguments."""
    constraint = held([tool], True, begun=OPENING + Constraint.head(tool))
    got = await events(
        backend,
        said(
            f"Call {tool.name}. {tool.description}",
            constraint.begun,
            constraint=constraint,
            sampling=Sampling(seed=1),
        ),
    )
    assert got[-1] == Finish("stop")
    arguments = json.loads(text(got).removesuffix("}" + CLOSING))
    assert not [
        error.message for error in jsonschema_rs.validator_for(dict(tool.parameters)).iter_errors(arguments)
    ]


async def test_ten_varied_tools_each_get_a_call_that_fits(options: LocalOptions, keeper: None) -> None:
    """`make evidence` asks for calls of 200 tools."""
    backend = LocalBackend("m", replace(options, max_string=32, max_items=3))
    await asyncio.gather(*(fitting(backend, tool) for tool in tools(10)))
    await backend.close()


async def test_a_required_call_is_one_of_the_tools_and_nothing_else(local: LocalBackend) -> None:
    offered = [WEATHER, *tools(4)]
    got = await events(
        local,
        said("What is the weather in Paris?", constraint=held(offered, True), sampling=Sampling(seed=3)),
    )
    assert text(got).startswith(OPENING) and text(got).endswith(CLOSING)
    parser = ToolCallParser(offered, ("sentinel",), nonce=NONCE)
    read = parser.feed(text(got)) + parser.finish()
    assert [event.status for event in read if isinstance(event, CallEnd)] == ["ok"]
    assert not any(isinstance(event, Text) and event.text.strip() for event in read)


async def test_a_bare_call_has_no_markers(local: LocalBackend) -> None:
    got = await events(
        local, said("What is the weather in Paris?", constraint=Constraint((WEATHER,), "", "", True))
    )
    call = json.loads(text(got))
    assert call["name"] == "get_weather"
    assert jsonschema_rs.is_valid(dict(WEATHER.parameters), call["arguments"])


async def test_several_calls_follow_each_other_up_to_the_limit(local: LocalBackend) -> None:
    turn = said(
        "Rome?",
        SHOWN,
        "Oslo, Bergen, Paris and Rome?",
        constraint=held([WEATHER], True, calls=2),
        sampling=Sampling(temperature=0),
    )
    got = await events(local, turn)
    assert 1 <= text(got).count(OPENING) <= 2
    assert text(got).count(OPENING) == text(got).count(CLOSING)
    assert got[-1] == Finish("stop")


async def test_free_text_may_hold_a_call_which_is_then_held_to_its_schema(local: LocalBackend) -> None:
    taught = f"To know the weather, write\n{SHOWN}"
    turn = said(
        f"{taught}\nWeather in Rome?",
        SHOWN,
        "Weather in Oslo?",
        SHOWN.replace("Rome", "Oslo"),
        "Weather in Bergen?",
    )
    got = await events(
        local, replace(turn, constraint=held([WEATHER], False), sampling=Sampling(temperature=0))
    )
    _, opening, call = text(got).partition(OPENING)
    assert opening and call.endswith(CLOSING), "a model that was shown two calls makes the third"
    arguments = json.loads(call.removesuffix(CLOSING))["arguments"]
    assert jsonschema_rs.is_valid(dict(WEATHER.parameters), arguments)


async def test_free_text_may_hold_no_call(local: LocalBackend) -> None:
    got = await events(
        local,
        said(
            "Say hello.", constraint=held([WEATHER], False), sampling=Sampling(temperature=0, max_tokens=40)
        ),
    )
    assert text(got) and OPENING not in text(got)


async def test_text_cannot_contain_an_opening_without_its_call(local: LocalBackend) -> None:
    """A bias and a prompt full of half calls invite unfinished calls. Each begun call still ends."""
    half = f"{OPENING}Rome"
    turn = said(
        "Go",
        half,
        "Go",
        half,
        "Go",
        half,
        "Go",
        constraint=held([WEATHER], False),
        sampling=Sampling(temperature=0, max_tokens=120),
    )
    got = await events(local, turn)
    for call in text(got).split(OPENING)[1:]:
        assert call.startswith(Constraint.head(WEATHER))


async def test_a_call_that_the_token_limit_cuts_is_not_completed(local: LocalBackend) -> None:
    constraint = held([WEATHER], True, begun=OPENING + Constraint.head(WEATHER))
    got = await events(
        local,
        said("Weather in Oslo?", constraint.begun, constraint=constraint, sampling=Sampling(max_tokens=4)),
    )
    assert got[-1] == Finish("length")
    assert CLOSING not in text(got)
    with pytest.raises(ValueError):
        json.loads(text(got))


async def test_a_schema_that_no_grammar_can_read_is_loosened_for_its_tool_alone(local: LocalBackend) -> None:
    """Each part is readable, but together they have no instance, which only llguidance notices."""
    odd = ToolSpec(
        "odd",
        "",
        {
            "type": "object",
            "properties": {"a": {"type": "string", "pattern": "^a{20}$", "maxLength": 10}},
            "required": ["a"],
        },
    )
    got = await events(
        local,
        said(
            "Call odd.",
            constraint=held([odd], True, begun=OPENING + Constraint.head(odd)),
            sampling=Sampling(max_tokens=300),
        ),
    )
    assert isinstance(json.loads(text(got).removesuffix("}" + CLOSING)), dict)
    both = await events(
        local,
        said(
            "Weather?",
            constraint=held([odd, WEATHER], True, begun=f'{OPENING}{{"name": "get'),
            sampling=Sampling(seed=5),
        ),
    )
    arguments = json.loads('{"name": "get' + text(both).removesuffix(CLOSING))["arguments"]
    assert jsonschema_rs.is_valid(dict(WEATHER.parameters), arguments)


async def test_an_answer_is_held_to_the_clients_schema(local: LocalBackend) -> None:
    schema = {
        "type": "object",
        "properties": {
            "mood": {"enum": ["good", "bad"]},
            "score": {"type": "integer", "maximum": 9, "minimum": 0},
        },
        "required": ["mood", "score"],
    }
    got = await events(local, said("How are you?", output=OutputFormat("json_schema", "mood", schema)))
    assert jsonschema_rs.is_valid(schema, json.loads(text(got)))
    whole = await events(
        local, said("Describe a cat.", output=OutputFormat("json_object"), sampling=Sampling(seed=2))
    )
    assert whole[-1] != Finish("stop") or isinstance(json.loads(text(whole)), dict)
    either = await events(
        local,
        said(
            "How are you?",
            output=OutputFormat("json_schema", "mood", schema),
            constraint=held([WEATHER], False),
        ),
    )
    assert text(either).startswith(OPENING) or jsonschema_rs.is_valid(schema, json.loads(text(either)))


# --- text ---


async def test_text_comes_as_it_is_decoded_with_usage_at_the_end(local: LocalBackend) -> None:
    batches = [
        batch
        async for batch in local.run(
            said("Count from one to ten.", sampling=Sampling(temperature=0, max_tokens=24))
        )
    ]
    assert len(batches) > 4
    *_, usage, end = [event for batch in batches for event in batch]
    assert end == Finish("length")
    assert isinstance(usage, Usage) and usage.output_tokens == 24 and usage.input_tokens > 8


async def test_a_prefilled_answer_is_continued_and_a_repeated_prompt_is_cached(local: LocalBackend) -> None:
    turn = said(
        "Name the capital of France.",
        "The capital of France is",
        sampling=Sampling(temperature=0, max_tokens=6),
    )
    got = await events(local, turn)
    assert "Paris" in text(got) and "capital" not in text(got)
    again = await events(local, turn)
    assert text(again) == text(got)
    assert next(event for event in again if isinstance(event, Usage)).cached_tokens > 8


async def test_sampling_fields_are_honoured(local: LocalBackend) -> None:
    turn = said("Tell me a story.", sampling=Sampling(seed=7, temperature=1.5, max_tokens=16))
    first, second = text(await events(local, turn)), text(await events(local, turn))
    other = text(await events(local, replace(turn, sampling=replace(turn.sampling, seed=8))))
    assert first == second != other
    stopped = await events(
        local,
        said(
            "Repeat: one two three four.",
            "one two",
            sampling=Sampling(temperature=0, max_tokens=16, stop=("four",)),
        ),
    )
    assert "four" not in text(stopped) and stopped[-1] == Finish("stop")
    biased = await events(
        local, said("Hi", sampling=Sampling(temperature=0, max_tokens=4, logit_bias={"28120": 100}))
    )
    assert len(set(text(biased).split("hello"))) == 1


async def test_no_character_is_ever_split(local: LocalBackend) -> None:
    wanted = "日本語 🎉 Ä𝒳🧑‍🚀"
    schema = {"enum": [wanted]}
    got = await events(local, said("x", output=OutputFormat("json_schema", "t", schema)))
    assert json.loads(text(got)) == wanted
    assert all("�" not in event.text for event in got if isinstance(event, Text))


# --- limits and failures ---


async def test_a_prompt_that_does_not_fit_is_an_openai_error_before_any_output(local: LocalBackend) -> None:
    [failure] = await events(local, said("word " * 3000))
    assert isinstance(failure, Failure) and failure.kind == "context_length" and failure.param == "messages"
    assert "maximum context length is 2048 tokens" in failure.message


async def test_an_answer_that_fills_the_context_ends_as_length(options: LocalOptions) -> None:
    backend = LocalBackend("m", replace(options, context=256, parallel=1, max_tokens=4096))
    try:
        got = await events(backend, said("word " * 180, "Once", sampling=Sampling(logit_bias={"2": -100})))
    finally:
        await backend.close()
    assert got[-1] == Finish("length")


class Steps:
    """Counts the callbacks of llama.cpp: prompt progress, then tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        put = Stream.put

        def counting(stream: Stream, chunk: Chunk) -> bool:
            self.count += 1
            return put(stream, chunk)

        monkeypatch.setattr(Stream, "put", counting)

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            await asyncio.sleep(0.01)


async def test_a_cancelled_run_ends_at_the_next_token(
    local: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    run = local.run(
        said("Tell me everything about cats.", sampling=Sampling(max_tokens=1500, logit_bias={"2": -100}))
    )
    while not any(isinstance(event, Text) for event in await anext(run)):
        pass
    await run.aclose()
    model = local._model
    assert model is not None
    await steps.until(lambda: model.idle)
    assert steps.count < 200


async def test_a_run_is_stopped_while_its_prompt_is_read(
    options: LocalOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend("m", replace(options, parallel=1, batch=32))
    steps = Steps(monkeypatch)
    running = asyncio.ensure_future(events(backend, said("word " * 1500)))
    await steps.until(lambda: steps.count > 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    model = backend._model
    assert model is not None
    await steps.until(lambda: model.idle)
    assert steps.count < 20, "of some fifty steps"
    assert isinstance((await events(backend, said("Hi", sampling=Sampling(max_tokens=1))))[-1], Finish), (
        "the only slot is free again"
    )
    await backend.close()


async def test_a_model_that_is_closed_ends_its_runs_and_those_that_wait(options: LocalOptions) -> None:
    backend = LocalBackend("m", replace(options, parallel=1, context=512))
    long = said("Tell me everything about cats.", sampling=Sampling(max_tokens=400, logit_bias={"2": -100}))
    run = backend.run(long)
    await anext(run)
    waiting = asyncio.ensure_future(events(backend, long))
    await asyncio.sleep(0)
    model = backend._model
    assert model is not None
    await backend.close()
    async with asyncio.timeout(10):
        ended = [event async for batch in run for event in batch]
        assert isinstance(ended[-1], Failure) and isinstance((await waiting)[-1], Failure)
    with pytest.raises(ToolwireError, match="being closed"):
        model.submit(lambda: b"", Stream(asyncio.get_running_loop()))


async def test_four_requests_at_once_share_the_model(local: LocalBackend) -> None:
    other = LocalBackend("other", local.options)
    try:
        await asyncio.gather(
            *(fitting(local, tool) for tool in tools(4)),
            events(other, said("Hi", sampling=Sampling(max_tokens=3))),
        )
        assert other._model is local._model
    finally:
        await other.close()


async def test_the_errors_of_a_missing_and_a_broken_file_explain_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: LocalOptions
) -> None:
    missing = LocalBackend("m", LocalOptions(gguf=str(tmp_path / "none.gguf")))
    assert not await missing.ready()
    with pytest.raises(ToolwireError, match=r"run: .*toolwire local pull") as failed:
        await events(missing, said("Hi"))
    assert failed.value.failure.kind == "backend_unavailable"
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"x" * 1000)
    backend = LocalBackend("m", LocalOptions(gguf=str(broken)))
    assert await backend.ready()
    for _ in range(2):
        with pytest.raises(ToolwireError, match=r"cannot load broken\.gguf"):
            await events(backend, said("Hi"))
    await missing.close()
    await backend.close()
    assert capfd.readouterr().err == ""


async def test_without_llamacpp_the_error_explains_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    backend = LocalBackend("m", LocalOptions(gguf=str(file)))
    with pytest.raises(ToolwireError, match=re.escape(add_extra("local"))):
        await events(backend, said("Hi"))
    await backend.close()


async def test_loading_is_silent_and_leaves_signals_environment_and_ports_alone(
    options: LocalOptions, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ctypes
    import os
    import signal
    import tempfile

    handler = ctypes.pythonapi.PyOS_getsig
    handler.restype, handler.argtypes = ctypes.c_void_p, [ctypes.c_int]
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [handler(one) for one in signals], dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        backend = LocalBackend("m", replace(options, context=512, parallel=1))
        await events(backend, said("Hi", sampling=Sampling(max_tokens=2)))
        assert os.listdir(folder) == []
    assert ([handler(one) for one in signals], dict(os.environ)) == before
    assert _listening() == set()
    await backend.close()
    assert capfd.readouterr() == ("", "")


def _listening() -> set[str]:
    """The TCP ports on which this process listens."""
    import os

    own = {
        os.readlink(f"/proc/self/fd/{one}")
        for one in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{one}")
    }
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


LEAVES = """
import asyncio, sys
from toolwire.backends.local import LocalBackend, LocalOptions
from toolwire.core.turn import Message, Sampling, TextPart, Turn

async def main():
    backend = LocalBackend("m", LocalOptions(gguf=sys.argv[1], context=1024))
    messages = (Message("user", (TextPart("Tell me a story."),)),)
    turn = Turn("chat", "m", messages, sampling=Sampling(max_tokens=900, logit_bias={"2": -100}))
    run = backend.run(turn)
    await anext(run)
    return run

run = asyncio.run(main())
print("left")
"""


def test_a_process_can_end_in_the_middle_of_an_answer(gguf: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES, str(gguf)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left\n", "")


@pytest.mark.parametrize("wrong", [{"context": 1}, {"parallel": 0}, {"temperature": 3.0}, {"max_tokens": 0}])
def test_options_out_of_range_are_refused_in_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
        LocalOptions(**wrong)
