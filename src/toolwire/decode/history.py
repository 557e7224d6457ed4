"""Pairs the calls of a history with their results, so that every backend gets a legal one.

A group is a run of calls with nothing but reasoning between them. After pairing, the results of a group stand directly behind it, in call order.

| what the client sent                                       | rule                                                             | note             |
|------------------------------------------------------------|------------------------------------------------------------------|------------------|
| results directly behind their group, in any order          | ordered as the calls are                                         | –                |
| on Responses, other items of the same answer between       | the same: so OpenAI orders an answer that says more than calls   | –                |
| a result before its call, or away from it                  | moved behind its group                                           | moved_result     |
| several results for one call                               | the last one holds                                               | duplicate_result |
| no result, and something follows                           | a result that says so is inserted                                | missing_result   |
| no result for any call of the last group, nothing follows  | left open                                                        | –                |
| a call id again, after its result came                     | another call: it and its result get an id of their own           | reused_id        |
| a call id again, same name and arguments                   | the later call is dropped                                        | duplicate_call   |
| a call id again, another name or other arguments           | refused                                                          | –                |
| a result whose call is nowhere                             | refused: what was asked can not be known                         | –                |
| a legacy result (a name, no id)                            | answers the nearest unanswered call of that name before it, or is refused | –       |

Heals invent no facts. Each is reported as a note (field, `healed:` and its name, with `:n` behind it when it happened n > 1 times).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from toolwire.decode.fields import Note, shown
from toolwire.errors import ToolwireError
from toolwire.turn import Call, Item, Message, Reasoning, Result, TextPart

NO_RESULT = "No result was returned for this call."
LEGACY_ID = ""
"""The call id of a legacy result before pairing. Decoders refuse empty ids, so no client can send it."""


class Paired(NamedTuple):
    items: tuple[Item, ...]
    notes: tuple[Note, ...]


def pair(items: Sequence[Item], paths: Sequence[str], field: str = "input") -> Paired:
    """The items with calls and results paired, and notes of what was healed.

    `paths` runs beside `items`: for a call or result the path of the field that holds its id (`input[2].call_id`; for a legacy result its name's),
    "" for other items and for those from the store. `field` is the top-level field the items came from.
    """
    if not any(type(item) is Call or type(item) is Result for item in items):
        return Paired(tuple(items), ())
    items, reused = _distinct(items)
    pairing = _Pairing(items, paths, field)
    pairing.healed["reused_id"] = reused
    pairing.find_calls()
    pairing.find_results()
    pairing.place()
    notes = tuple((field, f"healed:{name}" + (f":{count}" if count > 1 else "")) for name, count in pairing.healed.items() if count)
    return Paired(tuple(pairing.out), notes)


def _distinct(items: Sequence[Item]) -> tuple[Sequence[Item], int]:
    """Some servers count their ids anew in every turn (`call_0`). A call whose id was already answered is another call, and is told apart."""
    now: dict[str, str] = {}  # an id as the client writes it → the id of the call that it names at this point
    called: set[str] = set()
    answered: set[str] = set()
    taken: set[str] = set()
    out: list[Item] | None = None
    reused = 0
    for i, item in enumerate(items):
        if type(item) is Call:
            called.add(item.call_id)
            if item.call_id in answered:
                answered.discard(item.call_id)
                if out is None:
                    out = list(items)
                    taken = {one.call_id for one in items if type(one) is Call}
                reused += 1
                now[item.call_id] = _fresh(item.call_id, reused, taken)
                out[i] = replace(item, call_id=now[item.call_id])
            elif item.call_id in now and out is not None:
                out[i] = replace(item, call_id=now[item.call_id])
        elif type(item) is Result and item.call_id in called:
            answered.add(item.call_id)
            if item.call_id in now and out is not None:
                out[i] = replace(item, call_id=now[item.call_id])
    if not reused:
        return items, 0
    return out or items, reused


def _fresh(id: str, number: int, taken: set[str]) -> str:
    while f"{id}.{number}" in taken:
        number += 1
    return f"{id}.{number}"


class _Pairing:
    def __init__(self, items: Sequence[Item], paths: Sequence[str], field: str) -> None:
        self.items, self.paths, self.field = items, paths, field
        self.calls: dict[str, Call] = {}
        self.skipped: set[int] = set()  # positions of repeated calls and of results that a later one replaced
        self.answers: dict[str, Result] = {}
        self.call_of: dict[int, str] = {}  # position of a result → id of the call it answers
        self.healed = {"duplicate_call": 0, "duplicate_result": 0, "moved_result": 0, "missing_result": 0}
        self.out: list[Item] = []

    def find_calls(self) -> None:
        for i, item in enumerate(self.items):
            if type(item) is not Call:
                continue
            first = self.calls.setdefault(item.call_id, item)
            if first is item:
                continue
            if not _same_call(first, item):
                message = f"Duplicate tool call id '{shown(item.call_id)}': it names two different calls."
                raise ToolwireError("invalid_value", message, param=self._param(i))
            self.skipped.add(i)
            self.healed["duplicate_call"] += 1

    def find_results(self) -> None:
        by_id = {item.call_id for item in self.items if type(item) is Result}
        open_legacy: dict[str, list[str]] = {}
        last: dict[str, int] = {}
        for i, item in enumerate(self.items):
            if type(item) is Call:
                if item.call_id not in by_id and i not in self.skipped:
                    open_legacy.setdefault(item.name, []).append(item.call_id)
            elif type(item) is Result:
                call_id = item.call_id
                if call_id == LEGACY_ID:
                    waiting = open_legacy.get(item.name or "")
                    if not waiting:
                        raise self._orphan(i, item)
                    call_id = waiting.pop()
                call = self.calls.get(call_id)
                if call is None:
                    raise self._orphan(i, item)
                if call_id in last:
                    self.skipped.add(last[call_id])
                    self.healed["duplicate_result"] += 1
                last[call_id] = i
                self.call_of[i] = call_id
                fits = item.call_id == call_id and item.kind == call.kind
                self.answers[call_id] = item if fits else replace(item, call_id=call_id, kind=call.kind)

    def place(self) -> None:
        """Lays the items out anew. `group` are the ids of the open group; `held` is reasoning behind it that may turn out to stand inside it.

        `spoken` are the ids of the whole answer that the group belongs to: only Responses lets an answer be text between calls.
        """
        group: dict[str, None] = {}
        spoken: set[str] = set()
        held: list[Item] = []
        answering = False
        for i, item in enumerate(self.items):
            if type(item) is Result:
                there = self.call_of[i] in (spoken if self.field == "input" else () if held else group)
                if i not in self.skipped and not there:
                    self.healed["moved_result"] += 1
                answering = True
            elif type(item) is Call:
                if i in self.skipped:
                    continue
                if answering:
                    self._close(group)
                    spoken.clear()
                self.out += held
                held, answering = [], False
                self.out.append(item)
                group[item.call_id] = None
                spoken.add(item.call_id)
            elif type(item) is Reasoning and group and not answering:
                held.append(item)
            else:
                self._close(group)
                if answering or (type(item) is Message and item.role != "assistant"):
                    spoken.clear()
                self.out += held
                held, answering = [], False
                self.out.append(item)
        if held or any(call_id in self.answers for call_id in group):
            self._close(group)
        self.out += held

    def _close(self, group: dict[str, None]) -> None:
        for call_id in group:
            answer = self.answers.get(call_id)
            if answer is None:
                answer = Result(call_id, (TextPart(NO_RESULT),), self.calls[call_id].kind)
                self.healed["missing_result"] += 1
            self.out.append(answer)
        group.clear()

    def _param(self, i: int) -> str:
        return self.paths[i] or "previous_response_id"

    def _orphan(self, i: int, item: Result) -> ToolwireError:
        if item.call_id == LEGACY_ID:
            message = f"Invalid parameter: no preceding 'function_call' of '{shown(item.name)}' waits for this message with role 'function'."
        elif self.field == "messages":
            message = "Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
        else:
            output = "custom tool call output" if item.kind == "custom" else "function call output"
            message = f"No tool call found for {output} with call_id {shown(item.call_id)}."
        return ToolwireError("invalid_request", message, param=self._param(i))


def _same_call(one: Call, other: Call) -> bool:
    """Clients write arguments anew when they replay them: equal JSON is the same call."""
    if (one.name, one.kind, one.namespace) != (other.name, other.kind, other.namespace):
        return False
    if one.arguments == other.arguments:
        return True
    canonical = _canonical(one.arguments) if one.kind == "function" else None
    return canonical is not None and canonical == _canonical(other.arguments)


def _canonical(arguments: str) -> str | None:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return None
