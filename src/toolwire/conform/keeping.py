"""Evaluates checks about stored responses, threads, model lists, CORS and disconnects.

No side effects.
"""

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
    expect,
    failed,
    not_run,
    refused,
    result_reached_model,
    unmet,
    unseen,
)

_OF_A_MODEL = {"id": str, "object": str, "created": int, "owned_by": str}
_OF_ANTHROPICS_MODEL = {"id": str, "type": str, "display_name": str, "created_at": str}


def lists_models(seen: Seen) -> Verdict:
    exchange = seen[0]
    fault = _fault_of_list(exchange.body, _OF_A_MODEL)
    if not fault and exchange.body.get("object") != "list":
        fault = 'the body lacks "object": "list"'
    return unmet(exchange) or expect(not fault, exchange, fault)


def lists_anthropics_models(seen: Seen) -> Verdict:
    exchange = seen[0]
    fault = _fault_of_list(exchange.body, _OF_ANTHROPICS_MODEL)
    if not fault and not isinstance(exchange.body.get("has_more"), bool):
        fault = "the list lacks has_more"
    return unmet(exchange) or expect(not fault, exchange, fault)


def _fault_of_list(body: Mapping[str, Any], members: Mapping[str, type]) -> str:
    entries = body.get("data")
    if not isinstance(entries, list) or not entries:
        return "the body is not a list with at least one model"
    for entry in map(mapping, entries):
        lacking = [key for key, kind in members.items() if not isinstance(entry.get(key), kind)]
        if lacking:
            return f"a model lacks {', '.join(lacking)}"
    return ""


def counts_tokens(seen: Seen) -> Verdict:
    exchange = seen[0]
    count = exchange.body.get("input_tokens")
    counted = isinstance(count, int) and count > 0
    return unmet(exchange) or expect(counted, exchange, "the body has no input_tokens above 0")


def returns_model(seen: Seen) -> Verdict:
    exchange = seen[0]
    wanted = exchange.request.path.removeprefix("/models/")
    right = exchange.body.get("id") == wanted and exchange.body.get("object") == "model"
    return unmet(exchange) or expect(right, exchange, f"the body is not the model {wanted!r}")


# --- CORS ---


def origin_allowed(exchange: ProbeExchange) -> Verdict:
    allowed = exchange.headers.get("access-control-allow-origin", "")
    if exchange.busy and not allowed:  # a proxy in front of the endpoint may have answered
        return busy(exchange)
    fault = exchange.trouble or f"access-control-allow-origin is {allowed or 'missing'!r}"
    return expect(allowed in (ORIGIN, "*") and not exchange.trouble, exchange, fault)


def preflight_allows(seen: Seen) -> Verdict:
    exchange = seen[0]
    if exchange.busy:
        return busy(exchange)
    if not exchange.ok:
        return failed(exchange, exchange.trouble or f"HTTP {exchange.status}")
    verdict = origin_allowed(exchange)
    if verdict.result != "pass":
        return verdict
    listed = exchange.headers.get("access-control-allow-headers", "").split(",")
    allowed = {name.strip().lower() for name in listed}
    if "*" in allowed:
        allowed |= set(ASKED_HEADERS) - {"authorization"}
    lacking = [name for name in ASKED_HEADERS if name not in allowed]
    return expect(not lacking, exchange, f"access-control-allow-headers leaves out {', '.join(lacking)}")


# --- stored responses and threads ---


def _unstored(made: ProbeExchange, got: ProbeExchange) -> Verdict | None:
    """Returns a verdict if `made` stored no response, or if `got` did not return it; otherwise None."""
    verdict = unseen(made)
    if verdict is not None:
        return verdict
    if not made.answer.id:
        return failed(made, "the answer has no id")
    if got.busy:
        return busy(got)
    return failed(got, got.trouble or got.refusal) if not got.ok or got.error else None


def stored_as_answered(seen: Seen) -> Verdict:
    made, got = seen
    verdict = _unstored(made, got)
    if verdict is not None:
        return verdict
    for key in ("id", "object", "status", "output"):
        found, due = got.body.get(key), made.body.get(key)
        if found != due:
            return failed(got, f"{key} is {str(found)[:60]}, the answer had {str(due)[:60]}")
    return PASS


def lists_input(seen: Seen) -> Verdict:
    made, got = seen
    verdict = _unstored(made, got)
    if verdict is not None:
        return verdict
    entries = mappings(got.body.get("data"))
    if got.body.get("object") != "list" or not entries:
        return failed(got, "the body is not a list with the items of the input")
    if not all(isinstance(entry.get(key), str) for entry in entries for key in ("id", "type")):
        return failed(got, "an item has no id or no type")
    found = [_words(entry) for entry in entries]
    due = [_words(entry) for entry in mappings(made.request.asked.get("input"))]
    if found != due:
        return failed(got, f"the items are {str(found)[:80]}, the request had {str(due)[:80]}")
    return expect(isinstance(got.body.get("has_more"), bool), got, "the list lacks has_more")


def _words(item: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the role and the text of a message. Its content may be a text or parts."""
    content = item.get("content")
    parts = "".join(text_of(part.get("text")) for part in mappings(content))
    return text_of(item.get("role")), content if isinstance(content, str) else parts


def deletes(seen: Seen) -> Verdict:
    made, deleted, after = seen
    verdict = _unstored(made, deleted) or (busy(after) if after.busy else None)
    fault = f"HTTP {after.status} for a response that was deleted"
    return verdict or expect(after.status == 404, after, fault)


def stores_nothing(seen: Seen) -> Verdict:
    made, got = seen
    found = got.ok and not got.error
    fetched = failed(got, "a response with store: false can be fetched")
    return unseen(made) or (fetched if found else refused(404)([got]))


def echoes_previous(seen: Seen) -> Verdict:
    made, after = seen
    verdict = result_reached_model(after)
    if verdict.result != "pass":
        return verdict
    due, found = made.answer.id, after.body.get("previous_response_id")
    return expect(found == due, after, f"previous_response_id is {str(found)[:60]!r}, not {due[:60]!r}")


def continues_after_disconnect(seen: Seen) -> Verdict:
    """Passes if the endpoint answers a request after a client has disconnected during a stream."""
    left, after = seen
    verdict = broken(left)
    if verdict is None and not left.raw:
        return not_run(left, left.hollow)
    return verdict or answered(after)


NO_THREADS = "thread_unsupported_request"


def serves_threads(seen: Seen) -> Verdict:
    """Passes if a request that contains only the tool's result continues the thread.

    Also passes if the endpoint refuses the first request with the error code `NO_THREADS`.
    """
    first, after = seen
    if first.status == 400 and not first.trouble:
        code = mapping(mapping(mapping(first.json).get("error")).get("details")).get("error_code")
        return expect(code == NO_THREADS, first, f"error_code is {str(code)[:60]!r}, not {NO_THREADS!r}")
    return unseen(first) or result_reached_model(after)
