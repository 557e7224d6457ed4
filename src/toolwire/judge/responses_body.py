"""What must hold for a Responses object, its items and parts wherever they stand: in an event or as the body of an answer."""

from __future__ import annotations

from typing import Any

from toolwire.judge.channels import CALL_CHANNELS, CHANNELS, Channel
from toolwire.judge.growing import Growing
from toolwire.judge.problem import Findings, Options, check_usage, declared
from toolwire.judge.shape import INCOMPLETE_DETAILS, ITEMS, PARTS, RESPONSE, RESPONSE_ERROR, RESPONSE_USAGE_SHAPES

ECHO_MAY_CHANGE = ("status", "output", "usage", "error", "incomplete_details", "completed_at", "service_tier")
"""Keys of a response that may differ between its first and its last event."""

LISTS = {(channel.item, channel.list) for channel in CHANNELS if channel.list}


def check_item(findings: Findings, item: dict[str, Any]) -> bool:
    """The item's own keys. False: it can not be looked at further."""
    shape = ITEMS.get(str(item.get("type")))
    if shape is None:
        findings.add("item_type", f"there is no item {item.get('type')!r} here")
        return False
    if not findings.fits(shape, item):
        return False
    findings.check(item.get("call_id") != item["id"], "call_id", "id and call_id are the same")
    return True


def check_part(findings: Findings, channel: Channel, part: dict[str, Any]) -> bool:
    findings.check(part.get("type") == channel.part, "part_type", f"the part is {part.get('type')!r}, not {channel.part!r}")
    return findings.fits(PARTS[channel.part], part)


def check_outcome(findings: Findings, response: dict[str, Any], status: str) -> None:
    """Error, incompleteness, time of completion and usage stand there exactly when the status says so."""
    due = {"error": status == "failed", "incomplete_details": status == "incomplete"}
    for key, shape in (("error", RESPONSE_ERROR), ("incomplete_details", INCOMPLETE_DETAILS)):
        if not due[key]:
            findings.check(response[key] is None, "outcome", f"{key} is set although the status is {status!r}")
        elif response[key] is None:
            findings.add("outcome", f"{key} is null although the status is {status!r}")
        else:
            findings.fits(shape, response[key])
    if status != "completed":
        findings.check(response.get("completed_at") is None, "outcome", f"completed_at is set although the status is {status!r}")
    if isinstance(response.get("usage"), dict):
        check_usage(findings, RESPONSE_USAGE_SHAPES, response["usage"], ("input_tokens", "output_tokens"))


def check_response(findings: Findings, options: Options, response: dict[str, Any]) -> None:
    """A whole answer, not streamed."""
    if not findings.fits(RESPONSE, response):
        return
    status = response["status"]
    findings.check(status not in ("in_progress", "queued"), "status", f"the answer is there but its status is {status!r}")
    check_outcome(findings, response, status)
    ids: set[str] = set()
    last = len(response["output"]) - 1
    for index, item in enumerate(response["output"]):
        if not isinstance(item, dict):
            findings.add("item_type", f"item {index} is no object")
        elif check_item(findings, item):
            _finished_item(findings, options, item, may_be_cut=index == last and status != "completed")
            own: set[str] = {item[key] for key in ("id", "call_id") if key in item}
            findings.check(not own & ids, "id_repeated", f"{sorted(own & ids)} used before item {index}")
            ids |= own


def _finished_item(findings: Findings, options: Options, item: dict[str, Any], *, may_be_cut: bool) -> None:
    cut = item.get("status") == "incomplete"
    findings.check(item.get("status") != "in_progress", "status", f"item {item['id']!r} is still in_progress")
    findings.check(may_be_cut or not cut, "status", f"item {item['id']!r} is incomplete, though not the last of a cut response")
    call = CALL_CHANNELS.get(item["type"])
    if call is not None:
        declared(findings, options, item["name"])
        verdict = Growing(item[call.field]).verdict(json_expected=item["type"] == "function_call", cut=cut)
        if verdict:
            findings.add(verdict[0], f"call {item['name']!r}: {verdict[1]}")
    for owner, key in LISTS:
        for part in item.get(key, []) if owner == item["type"] else []:
            _finished_part(findings, item["type"], key, part)


def _finished_part(findings: Findings, item: str, key: str, part: Any) -> None:
    kinds = [channel for channel in CHANNELS if channel.item == item and channel.list == key]
    for channel in kinds:
        if isinstance(part, dict) and part.get("type") == channel.part:
            check_part(findings, channel, part)
            return
    findings.add("part_type", f"{str(part)[:60]} does not belong into {key} of {item!r}")
