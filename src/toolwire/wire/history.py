"""Pairs the calls of a history with their results: every backend gets a legal history.

A step is what the assistant produced at once: consecutive reasoning, texts and calls, in any order. In a
legal history every call of a step has exactly one result, directly after that step.

| the client sent                             | what happens                             | note             |
|---------------------------------------------|------------------------------------------|------------------|
| the results directly after their step       | sorted by the calls of the step          | –                |
| chat: an assistant message after calls      | both become one message                  | joined_message   |
| a message between a call and its result     | the call moves down to its result        | moved_call       |
| a result before its call                    | the result moves to the step of its call | moved_result     |
| the same result again                       | the first one counts                     | duplicate_result |
| several different results for one call      | the last one counts                      | duplicate_result |
| no result, and the conversation goes on     | the result `NO_RESULT` is added          | missing_result   |
| no result for any call of the last step     | these calls stay without results         | –                |
| a call id again, after its result           | call and result get a new id             | reused_id        |
| a call id again, same name and arguments    | the later call is dropped                | duplicate_call   |
| a call id again, other name or arguments    | refused                                  | –                |
| a result without a call                     | refused                                  | –                |
| a legacy result (a name, no id)             | answers the nearest open call before it  | –                |
|                                             | with that name, or is refused            |                  |

If a message is between a call and its result, the call moves down to the result, together with the reasoning
directly before the call. The result does not move up to the call: the history could then end with the user's
question, and the model would make the same call again. Messages never change their order. A moved call joins
the step directly before its result, or becomes a new step.

A repair adds no facts to the history. Each kind of repair is reported as one note: the field, then `healed:`
and the name from the table, then `:n` if the repair was made n > 1 times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Call, Item, Message, Reasoning, Result, TextPart
from toolwire.wire.checks import Note, shown

NO_RESULT = "No result was returned for this call."
LEGACY_ID = ""
"""The call id of a legacy result until it is paired.

No client can send this id, because decoders refuse empty ids.
"""


REPAIRS = (
    "duplicate_call duplicate_result joined_message moved_call moved_result missing_result reused_id".split()
)
"""The names of the repairs, in the order in which a report lists them."""
_PAIRED = frozenset({Call, Result})


class Paired(NamedTuple):
    items: tuple[Item, ...]
    notes: tuple[Note, ...]


def pair(items: Sequence[Item], paths: Sequence[str], field: str = "input") -> Paired:
    """Returns the items with calls and results paired, and notes on the repairs.

    `paths` has one entry per item. For a call or a result, the entry is the path of the field that holds its
    id, such as `input[2].call_id`; for a legacy result, it is the path of its name. For any other item, and
    for an item of an earlier response, it is "". `field` is the top-level field that holds the items.
    """
    if _PAIRED.isdisjoint(map(type, items)):
        return Paired(tuple(items), ())
    items, reused = _distinct(items)
    pairing = _Pairing(items, paths, field)
    pairing.repairs["reused_id"] = reused
    pairing.find_calls()
    pairing.find_results()
    pairing.place()
    notes = tuple(
        (field, f"healed:{name}" + (f":{count}" if count > 1 else ""))
        for name, count in pairing.repairs.items()
        if count
    )
    return Paired(tuple(pairing.out), notes)


def _distinct(items: Sequence[Item]) -> tuple[Sequence[Item], int]:
    """Gives a new id to each call whose id belongs to an earlier call that already has a result.

    Some servers number the calls of each answer from `call_0`. Returns the items, and the number of calls
    that got a new id.
    """
    now: dict[str, str] = {}  # client's id → current id of that call
    called: set[str] = set()
    answered: set[str] = set()
    taken = {item.call_id for item in items if type(item) is Call}
    out: list[Item] = []
    reused = 0
    for item in items:
        if type(item) is Call:
            called.add(item.call_id)
            if item.call_id in answered:
                answered.discard(item.call_id)
                reused += 1
                now[item.call_id] = _fresh(item.call_id, reused, taken)
        elif type(item) is Result and item.call_id in called:
            answered.add(item.call_id)
        if (type(item) is Call or type(item) is Result) and item.call_id in now:
            item = replace(item, call_id=now[item.call_id])
        out.append(item)
    return out, reused


def _fresh(id: str, number: int, taken: set[str]) -> str:
    while f"{id}.{number}" in taken:
        number += 1
    return f"{id}.{number}"


class _Step:
    """A step of the new history: consecutive items other than results, and the ids of their calls."""

    __slots__ = ("calls", "items", "message")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.calls: list[str] = []
        self.message: str | None = None  # chat: the path of the last message with a call


class _Pairing:
    """The pairing of one history: `find_calls`, `find_results` and `place` run in this order."""

    def __init__(self, items: Sequence[Item], paths: Sequence[str], field: str) -> None:
        self.items, self.paths, self.field = items, paths, field
        self.calls: dict[str, Call] = {}
        self.skipped: set[int] = set()  # positions of repeated calls and replaced results
        self.early: set[int] = set()  # positions of results that come before their call
        self.answers: dict[str, Result] = {}
        self.call_of: dict[int, str] = {}  # position of a result → id of the call it answers
        self.repairs = dict.fromkeys(REPAIRS, 0)
        self.out: list[Item] = []

    def find_calls(self) -> None:
        """Finds the calls by id. Skips repeated calls and refuses ids that name two different calls."""
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
            self.repairs["duplicate_call"] += 1

    def find_results(self) -> None:
        """Finds the result of each call. Refuses results without a call."""
        by_id = {item.call_id for item in self.items if type(item) is Result}
        open_legacy: dict[str, list[str]] = {}
        last: dict[str, int] = {}
        seen: set[str] = set()
        for i, item in enumerate(self.items):
            if type(item) is Call:
                seen.add(item.call_id)
                if item.call_id not in by_id and i not in self.skipped:
                    open_legacy.setdefault(item.name, []).append(item.call_id)
            elif type(item) is Result:
                call_id = item.call_id
                if call_id == LEGACY_ID:
                    waiting = open_legacy.get(item.name or "")
                    call_id = waiting.pop() if waiting else LEGACY_ID
                call = self.calls.get(call_id)
                if call is None:
                    raise self._orphan(i, item)
                if call_id not in seen:
                    self.early.add(i)
                self.call_of[i] = call_id
                if call_id in last:
                    self.repairs["duplicate_result"] += 1
                    if item.parts == self.answers[call_id].parts and last[call_id] not in self.early:
                        self.skipped.add(i)
                        continue
                    self.skipped.add(last[call_id])
                last[call_id] = i
                fits = item.call_id == call_id and item.kind == call.kind
                self.answers[call_id] = item if fits else replace(item, call_id=call_id, kind=call.kind)

    def place(self) -> None:
        """Arranges the items as `_Step`s, each followed by its results.

        A message that is not the assistant's becomes a step without calls.
        """
        number_of, goal_of = self._steps()
        steps = [_Step() for _ in range(number_of[-1] + 1)]
        thoughts: list[Item] = []  # reasoning, which moves with the item after it
        at = 0
        for i, item in enumerate(self.items):
            if type(item) is Result or i in self.skipped:
                continue
            if number_of[i] != at:
                steps[at].items += thoughts
                thoughts, at = [], number_of[i]
            if type(item) is Reasoning:
                thoughts.append(item)
                continue
            step = steps[goal_of.get(item.call_id, at) if type(item) is Call else at]
            if step is not steps[at]:
                self.repairs["moved_call"] += 1
            elif self.field == "messages":
                self._count_joined(step, i)
            step.items += (*thoughts, item)
            if type(item) is Call:
                step.calls.append(item.call_id)
            thoughts = []
        steps[at].items += thoughts
        self._write([step for step in steps if step.items])

    def _steps(self) -> tuple[list[int], dict[str, int]]:
        """Returns the number of each item's step, and for each call id, the number of the call's new step.

        Steps are numbered from 0. A call's new step is the one directly before its result. A call without a
        result has no new step.
        """
        number_of: list[int] = []
        goal_of: dict[str, int] = {}
        number, before = 0, "step"
        for i, item in enumerate(self.items):
            if type(item) is Result:
                if i in self.skipped:
                    pass
                elif i in self.early:
                    self.repairs["moved_result"] += 1
                else:
                    number += before == "other"
                    goal_of[self.call_of[i]] = number
                    before = "result"
            elif type(item) is Message and item.role != "assistant":
                number, before = number + 1, "other"
            else:
                number += before != "step"
                before = "step"
            number_of.append(number)
        return number_of, goal_of

    def _count_joined(self, step: _Step, i: int) -> None:
        """Counts the assistant messages of a chat that are joined to an earlier message with calls."""
        called = type(self.items[i]) is Call
        message = self.paths[i].partition(".")[0] if called else None
        if step.calls and (not called or step.message not in (None, message)):
            self.repairs["joined_message"] += 1
        step.message = message

    def _write(self, steps: list[_Step]) -> None:
        """Writes the steps to `out`, each followed by its results, and adds missing results."""
        for step in steps:
            self.out += step.items
            if step is steps[-1] and not any(call_id in self.answers for call_id in step.calls):
                return
            for call_id in step.calls:
                answer = self.answers.get(call_id)
                if answer is None:
                    answer = Result(call_id, (TextPart(NO_RESULT),), self.calls[call_id].kind)
                    self.repairs["missing_result"] += 1
                self.out.append(answer)

    def _param(self, i: int) -> str:
        return self.paths[i] or "previous_response_id"

    def _orphan(self, i: int, item: Result) -> ToolwireError:
        if item.call_id == LEGACY_ID:
            message = (
                f"Invalid parameter: no preceding 'function_call' of '{shown(item.name)}' waits for this "
                "message with role 'function'."
            )
        elif self.field == "messages.content":
            message = (
                f"unexpected `tool_use_id` found in `tool_result` blocks: {shown(item.call_id)}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        elif self.field == "messages":
            message = (
                "Invalid parameter: messages with role 'tool' must be a response to a preceding message "
                "with 'tool_calls'."
            )
        else:
            output = "custom tool call output" if item.kind == "custom" else "function call output"
            message = f"No tool call found for {output} with call_id {shown(item.call_id)}."
        return ToolwireError("invalid_request", message, param=self._param(i))


def _same_call(one: Call, other: Call) -> bool:
    """Returns True if both are the same call.

    Clients may serialize arguments anew, so the arguments are compared as JSON values, not as texts.
    """
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
