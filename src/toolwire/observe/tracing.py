"""Turns as OpenTelemetry spans, by its conventions for generative AI: one span a turn, one event a tool call.

Rules: off unless `telemetry.otlp` says where spans go; the SDK is an extra (`otel`) and loaded then only. A span is made when its turn has ended,
with the turn's own times, so that nothing on a turn's path waits for it; a thread of the SDK's sends. It holds no contents unless
`telemetry.with_contents` says so, and whatever it holds is masked. A caller's `traceparent` is the span's parent. Nothing else of the process is
instrumented, and no global is set.
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
from toolwire.settings.types import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from toolwire.core.turn import Turn
    from toolwire.gateway.records import TurnSummary
    from toolwire.settings.types import ModelSettings, Settings

NEEDED = "telemetry.otlp: traces need the extra 'otel': pip install 'toolwire[otel]'"
SEND_S = 5
CLOSE_S = 2.0
LONGEST_NAME = 128
MOST_EVENTS = 128
OPERATION = "chat"
OWN_PROCESS = frozenset({"local", "scripted"})
"""Backends whose model runs in this process."""
PROVIDERS = {
    "anthropic": "anthropic",
    "bedrock": "aws.bedrock",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "groq": "groq",
    "mistral": "mistral_ai",
    "openai": "openai",
    "openai-chat": "openai",
    "xai": "x_ai",
}
"""The names that the conventions have for providers; any other goes by its own."""
SAMPLING = (
    ("temperature", "gen_ai.request.temperature"),
    ("top_p", "gen_ai.request.top_p"),
    ("max_tokens", "gen_ai.request.max_tokens"),
    ("seed", "gen_ai.request.seed"),
    ("presence_penalty", "gen_ai.request.presence_penalty"),
    ("frequency_penalty", "gen_ai.request.frequency_penalty"),
)

log = logging.getLogger("toolwire.telemetry")


def tracing_of(settings: Settings) -> Tracing | None:
    """What the settings ask for. Raises ConfigError where it can not be had."""
    if not settings.telemetry.otlp:
        return None
    parts = urlsplit(settings.telemetry.otlp)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("telemetry.otlp: expected the URL of a collector, such as http://127.0.0.1:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError(NEEDED) from None
    base = settings.telemetry.otlp.rstrip("/")
    endpoint = base if parts.path.rstrip("/").endswith("/v1/traces") else f"{base}/v1/traces"
    return Tracing(settings, OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S))


class Tracing:
    """`observe` goes into the gateway's observers. `at_once`: every span is handed over when its turn has ended, which tests want."""

    def __init__(self, settings: Settings, exporter: SpanExporter, *, at_once: bool = False) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ImportError:
            raise ConfigError(NEEDED) from None
        telemetry = settings.telemetry
        resource = Resource.create({"service.name": telemetry.service, "service.instance.id": random_id("node_")})
        sampler = ParentBased(TraceIdRatioBased(telemetry.sample_percent / 100))
        self._provider: TracerProvider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("toolwire")
        self._contents = telemetry.with_contents
        self._mask = Mask.of(settings, os.environ)
        self._models = {model.id: _served_by(model) for model in settings.models}

    def observe(self, summary: TurnSummary) -> None:
        """Makes the span of a turn that has ended."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        start = int(summary.started_at * 1e9)
        mask, model = self._mask, self._mask.text(summary.model)[:LONGEST_NAME]
        span = self._tracer.start_span(
            f"{OPERATION} {model}" if model else OPERATION,
            context=_parent(summary.trace_parent),
            kind=SpanKind.INTERNAL if summary.backend in OWN_PROCESS else SpanKind.CLIENT,
            attributes={name: value for name, value in self._attributes(summary).items() if value is not None},
            start_time=start,
        )
        calls = zip(summary.tool_call_names, summary.tool_call_ids, summary.tool_call_s, strict=False)
        for name, id, after_s in list(calls)[:MOST_EVENTS]:
            told = {"gen_ai.tool.name": mask.text(name)[:LONGEST_NAME], "gen_ai.tool.call.id": mask.text(id)[:LONGEST_NAME]}
            span.add_event("gen_ai.tool.call", {**told, "gen_ai.tool.type": "function"}, timestamp=start + int(after_s * 1e9))
        if summary.error_kind is not None:
            span.set_status(Status(StatusCode.ERROR, summary.error_kind))
        span.end(end_time=start + int(summary.duration_s * 1e9))

    def _attributes(self, summary: TurnSummary) -> dict[str, Any]:
        provider, host, port = self._models.get(summary.model) or self._models.get(summary.model.partition("/")[0]) or (summary.backend, None, None)
        turn = summary.turn
        out: dict[str, Any] = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": provider or "toolwire",
            "gen_ai.request.model": summary.model[:LONGEST_NAME] or None,
            "gen_ai.response.model": summary.model[:LONGEST_NAME] or None,
            "gen_ai.response.id": summary.answer_id or None,
            "gen_ai.response.finish_reasons": (_finish(summary),) if summary.finish else None,
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
        told: dict[str, Any] = self._mask.value({**out, **_asked(turn)} if turn is not None else out)
        return {**told, **self._said(summary, turn)} if turn is not None else told

    def _said(self, summary: TurnSummary, turn: Turn) -> dict[str, Any]:
        contents = summary.contents
        if not self._contents or contents is None:
            return {}
        told = {
            "gen_ai.system_instructions": [{"type": "text", "content": turn.instructions}] if turn.instructions else [],
            "gen_ai.input.messages": contents.asked(turn),
            "gen_ai.output.messages": contents.said(),
        }
        return {name: json.dumps(self._mask.value(messages), ensure_ascii=False) for name, messages in told.items() if messages}

    async def close(self) -> None:
        """Sends what is left, if the collector takes it within `CLOSE_S`."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.force_flush(int(CLOSE_S * 1000))
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has not waited
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="toolwire-telemetry", daemon=True).start()  # no process waits for a collector
        try:
            await asyncio.wait_for(done.wait(), CLOSE_S)
        except TimeoutError:
            log.warning("the collector did not take the last spans within %g s", CLOSE_S)


def _asked(turn: Turn) -> dict[str, Any]:
    out = {name: value for field, name in SAMPLING if (value := getattr(turn.sampling, field)) is not None}
    if turn.sampling.stop:
        out["gen_ai.request.stop_sequences"] = tuple(turn.sampling.stop)
    if turn.n != 1:
        out["gen_ai.request.choice.count"] = turn.n
    if turn.output.type != "text":
        out["gen_ai.output.type"] = "json"
    return out


def _finish(summary: TurnSummary) -> str:
    """As the client is told it."""
    return "tool_calls" if summary.finish == "stop" and summary.tool_call_count else str(summary.finish)


def _served_by(model: ModelSettings) -> tuple[str, str | None, int | None]:
    """The provider's name, and where its server is, where it has one of its own."""
    options = model.options
    named = str(options.get("model", "")).partition(":")[0] if model.backend == "hosted" else str(options.get("profile") or model.backend)
    parts = urlsplit(str(options.get("base_url") or ""))
    try:
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        port = None
    return PROVIDERS.get(named, named), parts.hostname, port if parts.hostname else None


def _parent(header: str) -> Any:
    """The caller's context; None where there is none, or none that can be read."""
    if not header:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": header})


# --- contents ------------------------------------------------------------
#
# What was said in a turn, for those who are allowed to see it: the debug log, and traces whose settings
# ask for it. Nobody keeps it unless somebody wants it (`Gateway.contents_wanted`). It is bounded: beyond
# `MOST` characters the rest is counted, not kept.

MOST = 64 * 1024


class Contents:
    """One turn's. `saw` is told every batch that goes out; `asked` and `said` are lists of messages in the form of OpenTelemetry's conventions."""

    def __init__(self) -> None:
        self.left_out = 0
        self._room = MOST
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._calls: dict[tuple[int, int], dict[str, Any]] = {}

    def saw(self, batch: Batch, choice: int) -> None:
        for event in batch:
            if isinstance(event, Text | Thought):
                self._texts.setdefault((choice, "text" if isinstance(event, Text) else "reasoning"), []).append(self._kept(event.text))
            elif isinstance(event, CallBegin):
                self._calls[(choice, event.index)] = {"type": "tool_call", "id": event.id, "name": event.name, "arguments": []}
            elif isinstance(event, CallArgs) and (choice, event.index) in self._calls:
                self._calls[(choice, event.index)]["arguments"].append(self._kept(event.delta))

    def said(self) -> list[dict[str, Any]]:
        choices: dict[int, list[dict[str, Any]]] = {}
        for (choice, kind), pieces in self._texts.items():
            choices.setdefault(choice, []).append({"type": kind, "content": "".join(pieces)})
        for (choice, _), call in self._calls.items():
            choices.setdefault(choice, []).append({**call, "arguments": "".join(call["arguments"])})
        return [{"role": "assistant", "parts": parts} for _, parts in sorted(choices.items())]

    def asked(self, turn: Turn) -> list[dict[str, Any]]:
        """The request's own messages, the last ones first to be kept."""
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
        return {"role": "assistant", "parts": [{"type": "tool_call", "id": item.call_id, "name": item.name, "arguments": item.arguments}]}
    if isinstance(item, Result):
        said = "".join(part.text for part in item.parts if isinstance(part, TextPart))
        return {"role": "tool", "parts": [{"type": "tool_call_response", "id": item.call_id, "response": said}]}
    assert isinstance(item, Reasoning)
    return {"role": "assistant", "parts": [{"type": "reasoning", "content": "".join((*item.summary, *item.content))}]}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "content": part.text}
    if isinstance(part, ImagePart):
        url = part.url or ""
        return {"type": "uri", "modality": "image", "uri": url if not url.startswith("data:") else f"data:… ({len(url)} characters)"}
    return {"type": part.kind}
