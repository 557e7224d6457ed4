"""The shortcut for text that no stage would change writes the same bytes as the full path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    Refusal,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import counting_ids
from toolwire.core.turn import Message, TextPart, ToolChoice, ToolSpec, Turn
from toolwire.gateway.account import Account
from toolwire.gateway.plan import Plan, make_plan
from toolwire.gateway.stages import Stages
from toolwire.settings.types import ToolSettings
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.wire.chat.encode import ChatBody, ChatEncoder
from toolwire.wire.obsidian import ObsidianXml
from toolwire.wire.responses.encode import ResponsesEncoder

PIECES = st.sampled_from(
    [
        "a",
        "Hello ",
        "",
        " ",
        "\n",
        "<think>",
        "</think>",
        "x < y",
        '{"name": "look", "arguments": {}}',
        "<tool_call>",
        "</tool_call>",
        "```",
        "\ud800",
    ]
)
EVENTS = st.one_of(
    PIECES.map(Text),
    PIECES.map(Thought),
    PIECES.map(Refusal),
    st.builds(lambda index: CallBegin(index, "look", None), st.integers(0, 2)),
    st.builds(
        lambda index, delta: CallArgs(index, delta), st.integers(0, 2), st.sampled_from(["{}", '{"a":', "1}"])
    ),
    st.builds(CallEnd, st.integers(0, 2)),
    st.just(Usage(3, 4)),
)
BATCHES = st.lists(
    st.lists(EVENTS, min_size=1, max_size=4)
    | PIECES.map(lambda text: [Text(text)])
    | st.lists(PIECES.map(Text), min_size=2, max_size=4),
    max_size=12,
)
ENDS = st.sampled_from([Finish("stop"), Finish("length"), Failure("backend", "It broke.")])


class WithoutShortcut(Stages):
    """The stages, with the shortcut disabled."""

    def _settle(self) -> None:
        super()._settle()
        self.is_direct = self._rest_passes = False


def plan_of(tools: str, **settings: Any) -> Plan:
    choice = ToolChoice(settings.pop("choice", "auto"))
    turn = Turn(
        "chat", "m", (Message("user", (TextPart("Hi"),)),), tools=(ToolSpec("look"),), tool_choice=choice
    )
    backend = ScriptedBackend("m", ScriptedOptions(tools=tools))  # type: ignore[arg-type]
    return make_plan(turn, backend, ToolSettings(**settings), counting_ids())


def writer_of(kind: str) -> Any:
    if kind == "responses":
        return ResponsesEncoder(Turn("responses", "m", ()), id="resp_1", created=1, ids=counting_ids())
    made: dict[str, Any] = {"id": "chatcmpl-1", "created": 1, "ids": counting_ids()}
    return ChatEncoder("m", **made) if kind == "chat" else ChatBody("m", **made)


def written(
    stages: type[Stages], plan: Plan, kind: str, xml: bool, batches: list[list[Event]], parks: bool
) -> tuple[Any, ...]:
    writer, account = writer_of(kind), Account(0.0, None)
    one = stages(plan, writer, account, counting_ids(), xml=ObsidianXml() if xml else None)
    one.begin(parks)
    blocks = []
    for batch in batches:
        blocks.append(one.feed(list(batch)))
        if one.over:
            break
    end = b"" if kind == "body" else writer.finish("")
    return (
        b"".join(blocks),
        end,
        account.called(),
        account.finish,
        account.dropped,
        one.over,
        one.rejected is None,
        one.said,
        one.names,
    )


@pytest.mark.parametrize("kind", ["chat", "responses", "body"])
@pytest.mark.parametrize("tools", ["native", "emulated"])
@given(
    batches=BATCHES,
    end=ENDS,
    xml=st.booleans(),
    parks=st.booleans(),
    choice=st.sampled_from(["auto", "required"]),
    stop=st.sampled_from(["auto", "first"]),
)
def test_the_shortcut_for_text_writes_the_same_bytes_as_the_full_path(
    kind: str,
    tools: str,
    batches: list[list[Event]],
    end: Event,
    xml: bool,
    parks: bool,
    choice: str,
    stop: str,
) -> None:
    plan = plan_of(tools, choice=choice, stop_after=stop)
    fed = [*batches, [end]]
    assert written(Stages, plan, kind, xml, fed, parks) == written(
        WithoutShortcut, plan, kind, xml, fed, parks
    )
