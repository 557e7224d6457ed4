"""The verdicts on what an endpoint keeps and lists: models, stored responses, what pages may read, and that it goes on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwire.conform.asking import ASKED_HEADERS, ORIGIN
from toolwire.conform.exchange import ProbeExchange, mapping, mappings, text_of
from toolwire.conform.judging import (
    PASS,
    Seen,
    Verdict,
    answered,
    broken,
    busy,
    failed,
    not_run,
    refused,
    told_again,
    unseen,
)

_OF_A_MODEL = {"id": str, "object": str, "created": int, "owned_by": str}


def lists_models(seen: Seen) -> Verdict:
    exchange = seen[0]
    verdict = answered(exchange)
    if verdict.result != "pass":
        return verdict
    entries = exchange.body.get("data")
    if exchange.body.get("object") != "list" or not isinstance(entries, list) or not entries:
        return failed(exchange, "the body is no list of models with at least one of them")
    for entry in entries:
        lacking = [
            key
            for key, kind in (("id", str), ("object", str), ("created", int), ("owned_by", str))
            if not isinstance(mapping(entry).get(key), kind)
        ]
        if lacking:
            return failed(exchange, f"a model lacks {', '.join(lacking)}")
    return PASS


def tells_model(seen: Seen) -> Verdict:
    exchange = seen[0]
    verdict = answered(exchange)
    if verdict.result != "pass":
        return verdict
    wanted = exchange.request.path.removeprefix("/models/")
    if exchange.body.get("id") != wanted or exchange.body.get("object") != "model":
        return failed(exchange, f"the body is not the model {wanted!r}")
    return PASS


def _origin_allowed(exchange: ProbeExchange) -> Verdict:
    allowed = exchange.headers.get("access-control-allow-origin", "")
    if exchange.busy and not allowed:  # what stands before the endpoint may have said it
        return busy(exchange)
    return (
        PASS
        if allowed in (ORIGIN, "*")
        else failed(exchange, f"access-control-allow-origin is {allowed or 'missing'!r}")
    )


def preflight_allows(seen: Seen) -> Verdict:
    exchange = seen[0]
    if exchange.busy:
        return busy(exchange)
    if exchange.trouble or not exchange.ok:
        return failed(exchange, exchange.trouble or f"HTTP {exchange.status}")
    verdict = _origin_allowed(exchange)
    if verdict.result != "pass":
        return verdict
    allowed = {
        name.strip().lower() for name in exchange.headers.get("access-control-allow-headers", "").split(",")
    }
    lacking = [
        name
        for name in ASKED_HEADERS
        if name not in allowed and not ("*" in allowed and name != "authorization")
    ]
    return (
        failed(exchange, f"access-control-allow-headers leaves out {', '.join(lacking)}") if lacking else PASS
    )


def page_may_read(exchange: ProbeExchange) -> Verdict:
    return failed(exchange, exchange.trouble) if exchange.trouble else _origin_allowed(exchange)


def kept_as_told(seen: Seen) -> Verdict:
    """What was stored is what was answered."""
    made, got = seen
    verdict = _kept(made, got)
    if verdict is not None:
        return verdict
    for key in ("id", "object", "status", "output"):
        if got.body.get(key) != made.body.get(key):
            return failed(
                got, f"{key} is {str(got.body.get(key))[:60]}, the answer had {str(made.body.get(key))[:60]}"
            )
    return PASS


def lists_input(seen: Seen) -> Verdict:
    made, got = seen
    verdict = _kept(made, got)
    if verdict is not None:
        return verdict
    entries = mappings(got.body.get("data"))
    if got.body.get("object") != "list" or not entries:
        return failed(got, "the body is no list with the items of the input")
    if any(
        not isinstance(entry.get("id"), str) or not isinstance(entry.get("type"), str) for entry in entries
    ):
        return failed(got, "an item has no id or no type")
    told, due = (
        [_words(entry) for entry in entries],
        [_words(entry) for entry in mappings(made.request.asked.get("input"))],
    )
    if told != due:
        return failed(got, f"the items are {str(told)[:80]}, the request brought {str(due)[:80]}")
    return PASS if isinstance(got.body.get("has_more"), bool) else failed(got, "the list lacks has_more")


def _words(item: Mapping[str, Any]) -> tuple[str, str]:
    """Who says what in a message, which may be a text or parts."""
    content = item.get("content")
    return text_of(item.get("role")), content if isinstance(content, str) else "".join(
        text_of(part.get("text")) for part in mappings(content)
    )


def deletes(seen: Seen) -> Verdict:
    made, gone, after = seen
    verdict = _kept(made, gone)
    if verdict is not None:
        return verdict
    if after.busy:
        return busy(after)
    return (
        PASS if after.status == 404 else failed(after, f"HTTP {after.status} for a response that was deleted")
    )


def _kept(made: ProbeExchange, got: ProbeExchange) -> Verdict | None:
    verdict = unseen(made)
    if verdict is not None:
        return verdict
    if not made.answer.id:
        return failed(made, "the answer has no id")
    if got.busy:
        return busy(got)
    return failed(got, got.trouble or got.refusal) if not got.ok or got.error else None


def keeps_nothing(seen: Seen) -> Verdict:
    made, got = seen
    verdict = unseen(made)
    if verdict is not None:
        return verdict
    return (
        failed(got, "a response with store: false can be fetched")
        if got.ok and not got.error
        else refused(404)([got])
    )


def echoes_previous(seen: Seen) -> Verdict:
    made, after = seen
    verdict = told_again(after)
    if verdict.result != "pass":
        return verdict
    due = made.answer.id
    found = after.body.get("previous_response_id")
    return (
        PASS
        if found == due
        else failed(after, f"previous_response_id is {str(found)[:60]!r}, not {due[:60]!r}")
    )


def goes_on(seen: Seen) -> Verdict:
    """Someone hung up in the middle; the next one is answered."""
    left, after = seen
    verdict = broken(left)
    if verdict is None and not left.raw:
        return not_run(left, left.hollow)
    return verdict if verdict is not None else answered(after)
