"""What Prometheus sees. Rules: labels come from small closed sets (a model that is not configured counts as `unknown`); children are kept at hand."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import TurnSummary

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
MAX_SERIES = 10_000


class Metrics:
    """One server's registry. `observe` goes into the gateway's observers."""

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._series: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        by_model = ("api", "model")
        self.requests = Counter("toolwire_requests", "Turns that ended.", ("api", "model", "strategy", "status"), registry=registry)
        self.cancelled = Counter("toolwire_requests_cancelled", "Turns cancelled because the client left.", by_model, registry=registry)
        self.input_tokens = Counter("toolwire_input_tokens", "Tokens read by models, as the backends count them.", by_model, registry=registry)
        self.output_tokens = Counter("toolwire_output_tokens", "Tokens written by models.", by_model, registry=registry)
        self.tool_calls = Counter("toolwire_tool_calls", "Tool calls sent to clients.", by_model, registry=registry)
        self.truncated = Counter("toolwire_turns_truncated", "Turns in which policy dropped tool calls or text.", by_model, registry=registry)
        self.first_byte = Histogram("toolwire_first_byte_seconds", "Time to an answer's first byte.", by_model, buckets=SECONDS, registry=registry)
        self.duration = Histogram("toolwire_request_seconds", "Time to an answer's last byte.", by_model, buckets=SECONDS, registry=registry)
        self.streams_open = Gauge("toolwire_streams_open", "Streams being sent now.", registry=registry)
        self.refused = Counter("toolwire_http_refusals", "Requests refused before a turn began.", ("status",), registry=registry)

    def observe(self, summary: TurnSummary) -> None:
        model = summary.model if summary.model in self._models else "unknown"
        key = (summary.api, model, summary.strategy, summary.status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._children(*key)
            if len(self._series) > MAX_SERIES:
                self._series.clear()
        requests, cancelled, input_tokens, output_tokens, tool_calls, truncated, first_byte, duration = series
        requests.inc()
        duration.observe(summary.duration_s)
        if summary.first_byte_s is not None:
            first_byte.observe(summary.first_byte_s)
        if summary.input_tokens:
            input_tokens.inc(summary.input_tokens)
        if summary.output_tokens:
            output_tokens.inc(summary.output_tokens)
        if summary.tool_call_count:
            tool_calls.inc(summary.tool_call_count)
        if summary.tool_call_truncated:
            truncated.inc()
        if summary.cancelled:
            cancelled.inc()

    def _children(self, api: str, model: str, strategy: str, status: int) -> tuple[Any, ...]:
        pair = (api, model)
        families = (self.cancelled, self.input_tokens, self.output_tokens, self.tool_calls, self.truncated, self.first_byte, self.duration)
        return (self.requests.labels(api, model, strategy, str(status)), *(family.labels(*pair) for family in families))

    def page(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format the scraper asks for."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type
