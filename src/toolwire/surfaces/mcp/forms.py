"""Converts a question to an elicitation form, and the client's answer to a decision.

Nothing is preselected. Only the value `true` approves the call, or picks a file or result. Any other value
means no.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwire.core.display import clean
from toolwire.surfaces import cards
from toolwire.tools.contract import Approval, Decision, Tool, Touched, approve_label

APPROVE = "approve"
REASON = "reason"
MOST_REASON = 500


def message(approval: Approval, tool: Tool | None) -> str:
    """Returns the text above the form: the whole question."""
    return cards.plain(cards.card(approval, tool, whole=True))


def schema(approval: Approval) -> dict[str, Any]:
    """Returns the schema of the form: an object of booleans and one text, as elicitation requires."""
    title = f"{approve_label(approval.shown, approval.stage)}?"
    properties = {APPROVE: _checkbox(title, "Not ticked: the call is refused.")}
    for name, one in picks(approval).items():
        snippet = cards.snippet(one, 240) or "Ticked: the model sees this file."
        properties[name] = _checkbox(f"Share {cards.touched(one)}", snippet)
    description = "Optional, for a refusal; the model receives it."
    properties[REASON] = {
        "type": "string",
        "title": "Reason",
        "description": description,
        "maxLength": MOST_REASON,
    }
    return {"type": "object", "properties": properties, "required": [APPROVE]}


def _checkbox(title: str, description: str) -> dict[str, Any]:
    return {"type": "boolean", "title": title, "description": description, "default": False}


def picks(approval: Approval) -> dict[str, Touched]:
    """Returns the form's fields for picking: for each name of a field, the file or result that it picks."""
    if not approval.shown.pick:
        return {}
    return {f"share_{number}": one for number, one in enumerate(approval.shown.touched, 1) if not one.missing}


def decision(approval: Approval, action: str, content: Mapping[str, Any] | None) -> Decision:
    """Returns the decision that a form contains. `action` and `content`: the client's answer."""
    given = content or {}
    if action == "accept" and given.get(APPROVE) is True:
        picked = tuple(one.key for name, one in picks(approval).items() if given.get(name) is True)
        return Decision(True, picked=picked if approval.shown.pick else None)
    reason = given.get(REASON)
    return Decision(False, reason=clean(reason)[:MOST_REASON].strip() if isinstance(reason, str) else "")
