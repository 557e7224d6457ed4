"""OpenTelemetry tracing: a span per turn and an event per tool call.

Names follow OpenTelemetry's conventions for generative AI. Tracing is off unless `telemetry.otlp` names a
collector. The OpenTelemetry SDK comes with the extra `otel` and is imported only if tracing is on. A span is
created after its turn has ended, with the times of the turn. A thread of the SDK sends the span, so turns
never wait for the collector. A span contains no messages unless `telemetry.with_contents` is set. Secrets in
spans are masked. The client's `traceparent` is the span's parent. Nothing else in the process is
instrumented, and no global tracer provider is set.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolwire.backends.base import Batch
from toolwire.core.events import CallArgs, CallBegin, Text, Thought
from toolwire.core.ids import random_id
from toolwire.core.turn import Call, ImagePart, Message, Part, Reasoning, Result, TextPart, Turn
from toolwire.observe.masking import Mask
from toolwire.settings.extras import add_extra
from toolwire.settings.types import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from toolwire.gateway.records import TurnSummary
    from toolwire.settings.types import ModelSettings, Settings

SEND_S = 5
CLOSE_S = 2.0
LONGEST_NAME = 128
MOST_EVENTS = 128
OPERATION = "chat"
OWN_PROCESS = frozenset({"local", "scripted"})
"""Backends whose model runs in this process. Their spans have the kind INTERNAL."""
PROVIDERS = {
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "openai-chat": "openai",
    "xai": "x_ai",
}
"""OpenTelemetry's names of providers, by Toolwire's names. Other providers keep Toolwire's name."""
SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty")
"""Fields of `turn.Sampling` that have the same name in OpenTelemetry's conventions."""

log = logging.getLogger("toolwire.telemetry")


def _needed() -> str:
    return f"telemetry.otlp: traces need the extra 'otel': {add_extra('otel')}"


def tracing_of(settings: Settings) -> Tracing | None:
    """Returns the tracing for the settings, or None if it is off.

    Raises ConfigError if the SDK is missing or the URL is invalid.
    """
    if not settings.telemetry.otlp:
        return None
    try:
        parts = urlsplit(settings.telemetry.otlp)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError("telemetry.otlp: expected the URL of a collector, such as http://127.0.0.1:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError(_needed()) from None
    base = settings.telemetry.otlp.rstrip("/")
    endpoint = base if parts.path.rstrip("/").endswith("/v1/traces") else f"{base}/v1/traces"
    return Tracing(settings, OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S))


class Tracing:
    """Creates and sends spans. `at_once`: export each span immediately, for tests."""

    def __init__(self, settings: Settings, exporter: SpanExporter, *, at_once: bool = False) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ImportError:
            raise ConfigError(_needed()) from None
        telemetry = settings.telemetry
        service = {"service.name": telemetry.service, "service.instance.id": random_id("node_")}
        self._provider: TracerProvider = TracerProvider(
            resource=Resource.create(service),
            sampler=ParentBased(TraceIdRatioBased(telemetry.sample_percent / 100)),
            shutdown_on_exit=False,
        )
        processor = SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("toolwire")
        self._contents = telemetry.with_contents
        self._mask = Mask.of(settings, os.environ)
        self._models = {model.id: _served_by(model) for model in settings.models}

    def observe(self, summary: TurnSummary) -> None:
        """Creates the span of a turn that has ended. The gateway calls it as an observer."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        start = int(summary.started_at * 1e9)
        mask, model = self._mask, self._mask.text(summary.model)[:LONGEST_NAME]
        span = self._tracer.start_span(
            f"{OPERATION} {model}" if model else OPERATION,
            context=_parent(summary.trace_parent),
            kind=SpanKind.INTERNAL if summary.backend in OWN_PROCESS else SpanKind.CLIENT,
            attributes=self._attributes(summary),
            start_time=start,
        )
        calls = zip(summary.tool_call_names, summary.tool_call_ids, summary.tool_call_s, strict=False)
        for name, id, after_s in list(calls)[:MOST_EVENTS]:
            attributes = {
                "gen_ai.tool.name": mask.text(name)[:LONGEST_NAME],
                "gen_ai.tool.call.id": mask.text(id)[:LONGEST_NAME],
                "gen_ai.tool.type": "function",
            }
            span.add_event("gen_ai.tool.call", attributes, timestamp=start + int(after_s * 1e9))
        if summary.error_kind is not None:
            span.set_status(Status(StatusCode.ERROR, summary.error_kind))
        span.end(end_time=start + int(summary.duration_s * 1e9))

    def _attributes(self, summary: TurnSummary) -> dict[str, Any]:
        turn, models, model = summary.turn, self._models, summary.model
        served_by = models.get(model) or models.get(model.partition("/")[0])
        provider, host, port = served_by or (summary.backend, None, None)
        has_calls = summary.finish == "stop" and summary.tool_call_count
        finish = "tool_calls" if has_calls else summary.finish  # as the client sees it
        out: dict[str, Any] = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": provider or "toolwire",
            "gen_ai.request.model": model[:LONGEST_NAME] or None,
            "gen_ai.response.model": model[:LONGEST_NAME] or None,
            "gen_ai.response.id": summary.answer_id or None,
            "gen_ai.response.finish_reasons": (finish,) if finish else None,
            "gen_ai.usage.input_tokens": summary.input_tokens,
            "gen_ai.usage.output_tokens": summary.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": summary.cached_tokens or None,
            "gen_ai.usage.reasoning.output_tokens": summary.reasoning_tokens or None,
            "gen_ai.response.time_to_first_chunk": summary.first_byte_s if summary.stream else None,
            "gen_ai.request.stream": summary.stream or None,
            "server.address": host,
            "server.port": port,
            "error.type": "cancelled" if summary.cancelled else summary.error_kind,
            "toolwire.request.id": summary.request_id,
            "toolwire.turn.id": summary.turn_id or None,
            "toolwire.turn.kind": summary.kind,
            "toolwire.api": summary.api,
            "toolwire.backend": summary.backend,
            "toolwire.strategy": summary.strategy,
            "toolwire.report": summary.report or None,
            "toolwire.key.id": summary.key_id or None,
            "toolwire.key.name": summary.key_name or None,
            "toolwire.tool_calls.count": summary.tool_call_count,
            "toolwire.tool_calls.truncated": summary.tool_call_truncated,
        }
        if turn is not None:
            out |= _parameters(turn)
        masked = {name: value for name, value in self._mask.value(out).items() if value is not None}
        if turn is not None and self._contents and summary.contents is not None:
            messages = self._mask.value(_messages(turn, summary.contents))
            masked |= {name: json.dumps(some, ensure_ascii=False) for name, some in messages.items() if some}
        return masked

    async def close(self) -> None:
        """Sends the remaining spans, if the collector accepts them within `CLOSE_S`."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.force_flush(int(CLOSE_S * 1000))
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed: `close` has timed out
                loop.call_soon_threadsafe(done.set)

        # A daemon thread: a collector that does not answer must not keep the process alive.
        threading.Thread(target=shut_down, name="toolwire-telemetry", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), CLOSE_S)
        except TimeoutError:
            log.warning("the collector did not accept the last spans within %g s", CLOSE_S)


def _parameters(turn: Turn) -> dict[str, Any]:
    """Returns the request's parameters for which OpenTelemetry's conventions have a name."""
    return {
        **{f"gen_ai.request.{name}": getattr(turn.sampling, name) for name in SAMPLING},
        "gen_ai.request.stop_sequences": tuple(turn.sampling.stop) or None,
        "gen_ai.request.choice.count": turn.n if turn.n != 1 else None,
        "gen_ai.output.type": "json" if turn.output.type != "text" else None,
    }


def _served_by(model: ModelSettings) -> tuple[str, str | None, int | None]:
    """Returns the provider's name, and the host and port in the settings (None if not given)."""
    options = model.options
    if model.backend == "hosted":
        named = str(options.get("model", "")).partition(":")[0]
    else:
        named = str(options.get("profile") or model.backend)
    parts = urlsplit(str(options.get("base_url") or ""))
    try:
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        port = None
    return PROVIDERS.get(named, named), parts.hostname, port if parts.hostname else None


def _parent(header: str) -> Any:
    """Returns the client's trace context, or None if the header is empty."""
    if not header:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": header})


def _messages(turn: Turn, contents: Contents) -> dict[str, Any]:
    instructions = [{"type": "text", "content": turn.instructions}] if turn.instructions else []
    return {
        "gen_ai.system_instructions": instructions,
        "gen_ai.input.messages": contents.asked(turn),
        "gen_ai.output.messages": contents.said(),
    }


# --- contents ------------------------------------------------------------
#
# The messages of a turn, for the debug log and for traces with `telemetry.with_contents`. They are kept only
# if the log or the traces need them (`Gateway.contents_wanted`). At most `MOST` characters of the request and
# `MOST` characters of the answer are kept.

MOST = 64 * 1024


class Contents:
    """The messages of one turn, in the format of OpenTelemetry's conventions.

    The gateway calls `saw` with every batch that it sends. `left_out`: how many characters of the answer were
    not kept.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._room = MOST
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._calls: dict[tuple[int, int], dict[str, Any]] = {}

    def saw(self, batch: Batch, choice: int) -> None:
        for event in batch:
            if isinstance(event, Text | Thought):
                kind = "text" if isinstance(event, Text) else "reasoning"
                self._texts.setdefault((choice, kind), []).append(self._kept(event.text))
            elif isinstance(event, CallBegin):
                self._calls[(choice, event.index)] = _call(event.id, event.name, [])
            elif isinstance(event, CallArgs) and (choice, event.index) in self._calls:
                self._calls[(choice, event.index)]["arguments"].append(self._kept(event.delta))

    def said(self) -> list[dict[str, Any]]:
        """Returns the messages of the response, one per choice."""
        choices: dict[int, list[dict[str, Any]]] = {}
        for (choice, kind), pieces in self._texts.items():
            choices.setdefault(choice, []).append({"type": kind, "content": "".join(pieces)})
        for (choice, _), call in self._calls.items():
            choices.setdefault(choice, []).append({**call, "arguments": "".join(call["arguments"])})
        return [{"role": "assistant", "parts": parts} for _, parts in sorted(choices.items())]

    def asked(self, turn: Turn) -> list[dict[str, Any]]:
        """Returns the last messages of the request, as many as fit into `MOST` characters."""
        out: list[dict[str, Any]] = []
        room = MOST
        for item in reversed(turn.items):
            message = _message(item)
            room -= len(str(message))
            if room < 0:
                break
            out.append(message)
        return out[::-1]

    def _kept(self, text: str) -> str:
        kept = text[: self._room]
        self._room -= len(kept)
        self.left_out += len(text) - len(kept)
        return kept


def _message(item: Any) -> dict[str, Any]:
    if isinstance(item, Message):
        return {"role": item.role, "parts": [_part(part) for part in item.parts]}
    if isinstance(item, Call):
        return {"role": "assistant", "parts": [_call(item.call_id, item.name, item.arguments)]}
    if isinstance(item, Result):
        text = "".join(part.text for part in item.parts if isinstance(part, TextPart))
        response = {"type": "tool_call_response", "id": item.call_id, "response": text}
        return {"role": "tool", "parts": [response]}
    assert isinstance(item, Reasoning)
    text = "".join((*item.summary, *item.content))
    return {"role": "assistant", "parts": [{"type": "reasoning", "content": text}]}


def _call(id: str | None, name: str, arguments: str | list[str]) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "content": part.text}
    if isinstance(part, ImagePart):
        url = part.url or ""
        shown = f"data:… ({len(url)} characters)" if url.startswith("data:") else url
        return {"type": "uri", "modality": "image", "uri": shown}
    return {"type": part.kind}
