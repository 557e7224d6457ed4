"""The items of the Responses tool `mcp`, and the events of an item between its first and its last event.

A list of tools and a call each have an `in_progress` event, then a `completed` or a `failed` event. The
arguments of a call come between these two events. An approval request is complete when it is added, and has
no such events.
"""

from __future__ import annotations

from typing import Any

from toolwire.conform.judge.shape import (
    ANY,
    FILLED,
    LIST,
    OBJECT,
    TEXT,
    Findings,
    ObjectShape,
    ValueCheck,
    list_of,
    only,
    or_null,
)

LISTED, CALLED, ASKED = "mcp_list_tools", "mcp_call", "mcp_approval_request"
BEGINS, ENDS = "in_progress", ("completed", "failed")
MARKS = {f"response.{item}.{mark}": (item, mark) for item in (LISTED, CALLED) for mark in (BEGINS, *ENDS)}
"""For each type of event: the type of its item, and the state that the item has reached."""

_TOOL = ObjectShape(
    "listed tool",
    {"name": FILLED, "input_schema": OBJECT},
    {"description": or_null(TEXT), "annotations": or_null(OBJECT)},
)
_ERRORS = {
    "mcp_tool_execution_error": ObjectShape("call error", {"type": FILLED, "content": LIST}),
    "mcp_protocol_error": ObjectShape("call error", {"type": FILLED, "code": ANY, "message": TEXT}),
    "http_error": ObjectShape("call error", {"type": FILLED, "code": ANY, "message": TEXT}),
}
_OWN: dict[str, ValueCheck] = {"id": FILLED, "type": ANY, "server_label": FILLED}
_CALL: dict[str, ValueCheck] = {**_OWN, "name": FILLED, "arguments": TEXT}
ITEMS = {
    shape.name: shape
    for shape in (
        ObjectShape(LISTED, {**_OWN, "tools": list_of(_TOOL)}, {"error": or_null(TEXT)}),
        ObjectShape(ASKED, _CALL),
        ObjectShape(
            CALLED,
            _CALL,
            {
                "status": only("in_progress", "completed", "incomplete", "calling", "failed"),
                "output": or_null(TEXT),
                "error": or_null(OBJECT),
                "approval_request_id": or_null(FILLED),
            },
        ),
    )
}


class Marked:
    """Checks the events of one item of the tool `mcp` in a stream."""

    def __init__(self, item: dict[str, Any], findings: Findings) -> None:
        self._item, self._findings = item, findings
        self._begun, self._ended = False, ""

    def feed(self, item: str, mark: str, has_arguments: bool) -> None:
        check, kind = self._findings.check, self._item["type"]
        if not check(item == kind, "mcp_event", f"an event about {item!r} while {kind!r} is open"):
            return
        if mark == BEGINS:
            check(not self._begun, "mcp_event", f"{item!r} begins twice")
            self._begun = True
            return
        check(self._begun, "mcp_event", f"{item!r} ends before it began")
        check(not self._ended, "mcp_event", f"{item!r} ends twice")
        check(has_arguments or item != CALLED, "mcp_event", f"{item!r} ends before its arguments are done")
        self._ended = mark

    def arguments(self) -> None:
        """Checks that the call is in progress when a delta of its arguments comes."""
        may = self._begun and not self._ended
        self._findings.check(may, "mcp_event", "arguments come before the call begins, or after its end")

    def done(self, item: dict[str, Any]) -> None:
        """Checks that the item in its last event agrees with the earlier events."""
        check, kind = self._findings.check, item["type"]
        if kind == ASKED:
            check(item == self._item, "item_changed", "an approval request changes")
            return
        cut = item.get("status") == "incomplete"
        check(bool(self._ended) or cut, "mcp_event", f"{kind!r} is done without having ended")
        outcome = "failed" if item.get("error") is not None else "completed"
        ended = self._ended
        differs = f"{kind!r} is {outcome}, but its event says {ended}"
        check(cut or not ended or outcome == ended, "mcp_event", differs)
        finished(self._findings, item)


def finished(findings: Findings, item: dict[str, Any]) -> None:
    """Checks a call that has ended: its status, output and error."""
    if item["type"] != CALLED or item.get("status") == "incomplete":
        return
    error, status = item.get("error"), item.get("status")
    failed = error is not None
    findings.check(
        status == ("failed" if failed else "completed"),
        "mcp_status",
        f"the status {status!r} does not match the error {error}",
    )
    findings.check(
        failed == (item.get("output") is None), "mcp_status", "a call must have either an output or an error"
    )
    if failed and isinstance(error, dict):
        shape = _ERRORS.get(str(error.get("type")))
        if shape is None:
            findings.add("mcp_error", f"a call cannot have an error of type {error.get('type')!r}")
        else:
            findings.fits(shape, error)
