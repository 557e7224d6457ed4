"""A question as an elicitation form, and the form's answer as a decision. Pure.

Law 11: nothing is preselected. Only a literal `true` is a yes: to the call, and to each thing that may be picked. Whatever else comes back, a missing
field, another type, a form that was declined or put away, is a no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwire.surfaces.shown import clean, one_line
from toolwire.surfaces.terminal import cards
from toolwire.tools.contract import Approval, Decision, Tool, Touched

APPROVE = "approve"
REASON = "reason"
MOST_REASON = 500

_PROBLEM = "Approve, only to tell the model why this call cannot work?"
_ASKED = {"run": "Approve this call?", "share": "Share the results that are picked below?"}


def message(approval: Approval, tool: Tool | None) -> str:
    """What the person reads above the form: the whole question."""
    return cards.plain(cards.card(approval, tool, whole=True))


def schema(approval: Approval) -> dict[str, Any]:
    """The form: flat, of booleans and one text, as elicitation has it."""
    asked = _PROBLEM if approval.shown.problem else _ASKED[approval.stage]
    properties: dict[str, Any] = {APPROVE: {"type": "boolean", "title": asked, "description": "Not ticked: the call is refused.", "default": False}}
    properties |= {name: _pick(one) for name, one in picks(approval).items()}
    properties[REASON] = {
        "type": "string",
        "title": "Reason",
        "description": "Optional, for a refusal; the model is told.",
        "maxLength": MOST_REASON,
    }
    return {"type": "object", "properties": properties, "required": [APPROVE]}


def picks(approval: Approval) -> dict[str, Touched]:
    """The form's fields for what may be picked, by their names."""
    if not approval.shown.pick:
        return {}
    return {f"share_{number}": one for number, one in enumerate(approval.shown.touched, 1) if not one.missing}


def _pick(one: Touched) -> dict[str, Any]:
    return {
        "type": "boolean",
        "title": f"Share {cards.touched(one)}",
        "description": one_line(one.snippet, 240) or "Ticked: the model sees this file.",
        "default": False,
    }


def decision(approval: Approval, action: str, content: Mapping[str, Any] | None) -> Decision:
    """What the person answered."""
    given = content or {}
    if action == "accept" and given.get(APPROVE) is True:
        picked = tuple(one.key for name, one in picks(approval).items() if given.get(name) is True)
        return Decision(True, picked=picked if approval.shown.pick else None)
    reason = given.get(REASON)
    return Decision(False, reason=clean(reason)[:MOST_REASON].strip() if isinstance(reason, str) else "")
