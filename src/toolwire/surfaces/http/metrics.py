"""What Prometheus sees.

Rules: labels come from small closed sets, and no client's word makes a series: a model that is not configured counts as `unknown`, an error goes by
its kind, a key by nothing at all (`/v1/usage` knows keys). What is true only now (streams, queues, parks) is looked up when somebody asks. Children
are kept at hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from toolwire.gateway.nodes import Nodes
    from toolwire.gateway.pipeline import Gateway, TurnSummary

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
MAX_SERIES = 10_000
UNKNOWN = "unknown"


class Metrics:
    """One server's registry. `observe` goes into the gateway's observers."""

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self._series: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        by_model = ("api", "model")
        Info("toolwire_build", "What runs here.", registry=registry).info({"version": version("toolwire")})
        self.requests = Counter("toolwire_requests", "Turns that ended.", ("api", "model", "strategy", "status"), registry=registry)
        self.cancelled = Counter("toolwire_requests_cancelled", "Turns cancelled because the client left.", by_model, registry=registry)
        self.input_tokens = Counter("toolwire_input_tokens", "Tokens read by models, as the backends count them.", by_model, registry=registry)
        self.cached_tokens = Counter("toolwire_cached_tokens", "Of these, tokens that a cache held.", by_model, registry=registry)
        self.output_tokens = Counter("toolwire_output_tokens", "Tokens written by models.", by_model, registry=registry)
        self.tool_calls = Counter("toolwire_tool_calls", "Tool calls sent to clients.", by_model, registry=registry)
        self.truncated = Counter("toolwire_turns_truncated", "Turns in which policy dropped tool calls or text.", by_model, registry=registry)
        self.first_byte = Histogram("toolwire_first_byte_seconds", "Time to an answer's first byte.", by_model, buckets=SECONDS, registry=registry)
        self.duration = Histogram("toolwire_request_seconds", "Time to an answer's last byte.", by_model, buckets=SECONDS, registry=registry)
        self.kinds = Counter("toolwire_turns", "Turns by how they began: new, resumed from a park, replayed.", ("kind",), registry=registry)
        self.errors = Counter("toolwire_errors", "Requests that ended in an error, by its kind.", ("kind",), registry=registry)
        self.streams_open = Gauge("toolwire_streams_open", "Streams being sent now.", registry=registry)
        self.refused = Counter("toolwire_http_refusals", "Requests refused before a turn began.", ("status",), registry=registry)

    def observe(self, summary: TurnSummary) -> None:
        model = summary.model if summary.model in self._models else UNKNOWN
        key = (summary.api, model, summary.strategy, summary.status, summary.kind)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._children(*key)
            if len(self._series) > MAX_SERIES:
                self._series.clear()
        requests, kinds, cancelled, input_tokens, cached_tokens, output_tokens, tool_calls, truncated, first_byte, duration = series
        requests.inc()
        kinds.inc()
        duration.observe(summary.duration_s)
        if summary.first_byte_s is not None:
            first_byte.observe(summary.first_byte_s)
        for counter, count in (
            (input_tokens, summary.input_tokens),
            (cached_tokens, summary.cached_tokens),
            (output_tokens, summary.output_tokens),
            (tool_calls, summary.tool_call_count),
            (truncated, summary.tool_call_truncated),
            (cancelled, summary.cancelled),
        ):
            if count:
                counter.inc(count)
        if summary.error_kind is not None:
            self.errors.labels(summary.error_kind).inc()

    def _children(self, api: str, model: str, strategy: str, status: int, kind: str) -> tuple[Any, ...]:
        counters = (self.cancelled, self.input_tokens, self.cached_tokens, self.output_tokens, self.tool_calls, self.truncated)
        children = (family.labels(api, model) for family in (*counters, self.first_byte, self.duration))
        return (self.requests.labels(api, model, strategy, str(status)), self.kinds.labels(kind), *children)

    def watch(self, gateway: Gateway) -> None:
        """Tells of what the gateway holds now."""
        self.registry.register(_Now(lambda: _of_gateway(gateway, self._models)))

    def watch_nodes(self, nodes: Nodes) -> None:
        self.registry.register(_Now(lambda: iter((_gauge("toolwire_redis_up", "Whether the nodes' board can be reached.", nodes.up),))))

    def page(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format the scraper asks for."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type


# --- what is true now --------------------------------------------------------------------------------------------------------------------------


class _Now(Collector):
    def __init__(self, look: Callable[[], Iterator[Metric]]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        return self._look()

    def describe(self) -> list[Metric]:
        return []  # looked up when asked for, not when registered


def _of_gateway(gateway: Gateway, models: Container[str]) -> Iterator[Metric]:
    yield _gauge("toolwire_parked_runs", "Runs that wait for the results of their calls.", len(gateway.parking))
    ended = CounterMetricFamily("toolwire_parks", "What became of parked runs.", labels=("outcome",))
    for outcome, count in gateway.parking.outcomes.items():
        ended.add_metric((outcome,), count)
    yield ended
    yield from _queues(gateway, models)
    if gateway.limits.shared is not None:
        yield _gauge("toolwire_shared_limits_up", "Whether limits are counted by all nodes together.", gateway.limits.shared.up)
    if gateway.store is not None:
        yield _gauge("toolwire_store_up", "Whether the store could be reached the last time.", gateway.store.reachable)
    if gateway.journal is not None:
        yield _gauge("toolwire_journal_bytes", "What the journal holds in memory.", gateway.journal.held_bytes)
    yield _gauge("toolwire_tasks", "Tasks of the event loop.", _tasks())


def _queues(gateway: Gateway, models: Container[str]) -> Iterator[Metric]:
    running = GaugeMetricFamily("toolwire_model_running", "Turns that run, where limits.backend_concurrent bounds them.", labels=("model",))
    waiting = GaugeMetricFamily("toolwire_model_waiting", "Turns that wait for their turn there.", labels=("model",))
    counts: dict[str, tuple[int, int]] = {}
    for model, runs, waits in gateway.queues.lines():
        known = model if model in models else UNKNOWN
        before = counts.get(known, (0, 0))
        counts[known] = (before[0] + runs, before[1] + waits)
    for model, (runs, waits) in counts.items():
        running.add_metric((model,), runs)
        waiting.add_metric((model,), waits)
    yield running
    yield waiting


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # asked outside of the loop
        return 0


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=float(value))
