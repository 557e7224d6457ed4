"""The history as an agent is told it, and what a conversation is known by.

A fresh agent gets one prompt: the client's instructions, the conversation so far with the names and ids of its calls, and what is to be answered now.
A session that has been through the conversation is told only what is new. Pure.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    Part,
    Reasoning,
    Result,
    TextPart,
    ToolChoice,
    Turn,
)

SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System", "developer": "System"}


def words(parts: Iterable[Part]) -> str:
    """The text of a message or a result; what is no text is named."""
    out = []
    for part in parts:
        if isinstance(part, TextPart):
            out.append(part.text)
        elif isinstance(part, ImagePart):
            out.append("[image]")
        elif isinstance(part, OtherPart):
            out.append(f"[{part.kind}]")
    return "\n".join(out)


def images(items: Iterable[Item]) -> list[ImagePart]:
    """The images of a conversation, or of a part of it, in the order in which `words` names them."""
    return [
        part
        for item in items
        if isinstance(item, Message | Result)
        for part in item.parts
        if isinstance(part, ImagePart)
    ]


def news(items: Sequence[Item]) -> tuple[Item, ...]:
    """What came after the assistant spoke last."""
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, Call | Reasoning) or (isinstance(item, Message) and item.role == "assistant"):
            return tuple(items[place + 1 :])
    return tuple(items)


def instructions(turn: Turn) -> str:
    """The client's own system text."""
    told = [turn.instructions] if turn.instructions else []
    told += [
        words(item.parts)
        for item in turn.items
        if isinstance(item, Message) and item.role in ("system", "developer")
    ]
    return "\n\n".join(filter(None, told))


def fresh_prompt(turn: Turn, extra: str = "") -> str:
    """Everything, for an agent that knows nothing yet."""
    spoken = [
        item
        for item in turn.items
        if not (isinstance(item, Message) and item.role in ("system", "developer"))
    ]
    system = "\n\n".join(filter(None, (instructions(turn), extra, demand(turn.tool_choice))))
    blocks = [f"<instructions>\n{system}\n</instructions>"] if system else []
    if len(spoken) == 1 and isinstance(spoken[0], Message):
        return "\n\n".join([*blocks, words(spoken[0].parts)])
    blocks.append("The conversation so far:")
    blocks += list(_told(spoken))
    if spoken and isinstance(spoken[-1], Result):
        blocks.append("Go on from these results.")
    return "\n\n".join(blocks)


def next_prompt(turn: Turn, extra: str = "") -> str:
    """What is new, for a session that has been through the rest."""
    told = [words(item.parts) for item in news(turn.items) if isinstance(item, Message)]
    return "\n\n".join(filter(None, [*told, extra, demand(turn.tool_choice)]))


def _told(items: Iterable[Item]) -> Iterable[str]:
    names: dict[str, str] = {}
    for item in items:
        if isinstance(item, Message):
            said = words(item.parts) or item.refusal or ""
            if said:
                yield f"{SPEAKERS[item.role]}: {said}"
        elif isinstance(item, Call):
            names[item.call_id] = item.name
            yield f"Assistant: [called tool {item.name}, id {item.call_id}: {item.arguments or '{}'}]"
        elif isinstance(item, Result):
            yield f"[result of tool {item.name or names.get(item.call_id, '?')}, id {item.call_id}]: {words(item.parts)}"


def demand(choice: ToolChoice) -> str:
    """What an agent that knows no tool_choice is asked for in words."""
    if choice.mode != "required":
        return ""
    return f"You must call {_wanted(choice)} before you answer."


def _wanted(choice: ToolChoice) -> str:
    return f"the tool {choice.name}" if choice.name else "one of your tools"


# --- what a conversation is known by -------------------------------------------------------------------------------------------------------------

Entry = tuple[str, ...]


def entries(items: Iterable[Item]) -> list[Entry]:
    """The conversation without ids, reasoning and message boundaries: equal for every client that repeats what it got.

    Clients differ in how they order the texts and calls of one step: here the texts come first.
    """
    out: list[Entry] = []
    calls: list[Entry] = []
    for item in items:
        if isinstance(item, Call):
            calls.append(call_entry(item.name, item.arguments))
            continue
        if isinstance(item, Result) or (isinstance(item, Message) and item.role != "assistant"):
            out += calls
            calls.clear()
        if isinstance(item, Message):
            add(out, "system" if item.role == "developer" else item.role, content(item.parts))
        elif isinstance(item, Result):
            out.append(result_entry(item))
    return [*out, *calls]


def add(entries: list[Entry], role: str, said: str) -> None:
    """One more text; texts of one speaker that follow each other are one."""
    if not said:
        return
    if entries and entries[-1][0] == role:
        entries[-1] = (role, entries[-1][1] + "\n" + said)
    else:
        entries.append((role, said))


def content(parts: Iterable[Part]) -> str:
    """Like `words`, but two images are one only where they are the same."""
    return "\n".join(
        part.text if isinstance(part, TextPart) else f"[{_hash(asdict(part))}]" for part in parts
    )


def result_entry(result: Result) -> Entry:
    return ("result", content(result.parts))


def call_entry(name: str, arguments: str) -> Entry:
    return ("call", name, _canonical(arguments))


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def fingerprint(turn: Turn, told: Sequence[Entry]) -> str:
    """What a conversation of this turn's kind (same caller, model, instructions, tools, output) is known by."""
    tools = sorted(
        (tool.name, tool.description, json.dumps(tool.parameters, sort_keys=True, default=str))
        for tool in turn.offered()
    )
    sampling = (turn.sampling.effort, turn.output.type, turn.output.schema)
    return _hash([turn.caller, turn.model, turn.instructions, tools, sampling, list(told)])


def _hash(facts: Any) -> str:
    return hashlib.sha256(
        json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    ).hexdigest()


def known_part(turn: Turn) -> list[Entry]:
    """What a session must have been through to be told only the news."""
    fresh = len(news(turn.items))
    return entries(turn.items[: len(turn.items) - fresh])


# --- idle ------------------------------------------------------------
#
# Sessions that wait between two turns, known by the conversation they have been through. Bounded in number
# and time; closing is the owner's.

Session = TypeVar("Session")


class Idle(Generic[Session]):
    """`close` ends a session that nobody came back for."""

    def __init__(self, close: Callable[[Session], Awaitable[None]], most: int, ttl_s: float) -> None:
        self._close = close
        self._most = most
        self._ttl_s = ttl_s
        self._waiting: OrderedDict[str, tuple[Session, asyncio.TimerHandle]] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, fingerprint: str, session: Session) -> None:
        self._drop(fingerprint)
        timer = asyncio.get_running_loop().call_later(self._ttl_s, self._drop, fingerprint)
        self._waiting[fingerprint] = (session, timer)
        while len(self._waiting) > self._most:
            self._drop(next(iter(self._waiting)))

    def take(self, fingerprint: str) -> Session | None:
        """The session of this conversation; from now on it is the caller's."""
        found = self._waiting.pop(fingerprint, None)
        if found is None:
            return None
        found[1].cancel()
        return found[0]

    def _drop(self, fingerprint: str) -> None:
        session = self.take(fingerprint)
        if session is not None:
            task = asyncio.ensure_future(self._close(session))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for fingerprint in list(self._waiting):
            self._drop(fingerprint)
        await asyncio.gather(*self._closing, return_exceptions=True)
