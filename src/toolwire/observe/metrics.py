"""The server's Prometheus metrics.

Labels have few possible values, and a client cannot create new series. A model that is not configured has the
label `unknown`. Errors are labelled by their kind. Keys are not labels (`/v1/usage` returns the usage of each
key). The gateway's current state (queues, parked runs) is read when the metrics are requested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from toolwire.cluster.nodes import Nodes
    from toolwire.gateway.pipeline import Gateway
    from toolwire.gateway.records import TurnSummary

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
UNKNOWN = "unknown"
MOST_SERIES = 1024
Series = tuple[Counter, Counter, dict[str, Counter], Histogram, Histogram]
COUNTS = {
    "cancelled": ("toolwire_requests_cancelled", "Turns cancelled because the client disconnected."),
    "input_tokens": ("toolwire_input_tokens", "Tokens read by models, as the backends count them."),
    "cached_tokens": ("toolwire_cached_tokens", "Input tokens that came from a prompt cache."),
    "output_tokens": ("toolwire_output_tokens", "Tokens written by models."),
    "tool_call_count": ("toolwire_tool_calls", "Tool calls sent to clients."),
    "tool_call_truncated": (
        "toolwire_turns_truncated",
        "Turns in which Toolwire left out calls at the end of the response.",
    ),
}
"""Numeric fields of a turn's summary, each with the counter that sums it by API and model."""


class Metrics:
    """The metrics of one server, in their own registry."""

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        about = Info("toolwire_build", "The version of Toolwire.", registry=registry)
        about.info({"version": version("toolwire")})

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(name, help, labels, registry=registry)

        def seconds(name: str, help: str) -> Histogram:
            return Histogram(name, help, ("api", "model"), registry=registry, buckets=SECONDS)

        labels = ("api", "model", "strategy", "status")
        self._requests = counter("toolwire_requests", "Turns that ended.", *labels)
        help = "Turns by how they began: new, resumed or replayed."
        self._turns = counter("toolwire_turns", help, "kind")
        self._counts = {field: counter(name, help, "api", "model") for field, (name, help) in COUNTS.items()}
        self._first_byte = seconds("toolwire_first_byte_seconds", "Time to an answer's first byte.")
        self._duration = seconds("toolwire_request_seconds", "Time to an answer's last byte.")
        self._series = lru_cache(MOST_SERIES)(self._labelled)
        self.errors = counter("toolwire_errors", "Requests that ended in an error, by its kind.", "kind")
        self.streams_open = Gauge("toolwire_streams_open", "Streams being sent now.", registry=registry)
        self.refused = counter("toolwire_http_refusals", "Requests refused before a turn began.", "status")

    def observe(self, summary: TurnSummary) -> None:
        """Counts a turn that has ended. The gateway calls it as an observer."""
        api, model = summary.api, summary.model if summary.model in self._models else UNKNOWN
        requests, turns, counts, first_byte, duration = self._series(
            api, model, summary.strategy, summary.status, summary.kind
        )
        requests.inc()
        turns.inc()
        for field, counter in counts.items():
            if (amount := getattr(summary, field)) > 0:  # a server may report negative usage
                counter.inc(amount)
        if summary.first_byte_s is not None:
            first_byte.observe(summary.first_byte_s)
        duration.observe(summary.duration_s)
        if summary.error_kind is not None:
            self.errors.labels(summary.error_kind).inc()

    def _labelled(self, api: str, model: str, strategy: str, status: int, kind: str) -> Series:
        """Returns the series for turns with these labels.

        The series are cached, because the lookup is slow.
        """
        counts = {field: counter.labels(api, model) for field, counter in self._counts.items()}
        times = self._first_byte.labels(api, model), self._duration.labels(api, model)
        return self._requests.labels(api, model, strategy, status), self._turns.labels(kind), counts, *times

    def watch(self, gateway: Gateway) -> None:
        """Adds metrics of the gateway's current state."""
        self.registry.register(_StateCollector(lambda: _of_gateway(gateway, self._models)))

    def watch_nodes(self, nodes: Nodes) -> None:
        def up() -> Iterator[Metric]:
            yield _gauge("toolwire_redis_up", "Whether the nodes can reach Redis.", nodes.up)

        self.registry.register(_StateCollector(up))

    def page(self, accept: str) -> tuple[bytes, str]:
        """Returns the metrics and their content type, in the format that the scraper accepts."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type


# --- current state -------------------------------------------------------


class _StateCollector(Collector):
    """Metrics whose values are read when they are requested."""

    def __init__(self, look: Callable[[], Iterator[Metric]]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        return self._look()

    def describe(self) -> list[Metric]:
        return []  # do not read the values at registration


def _of_gateway(gateway: Gateway, models: Container[str]) -> Iterator[Metric]:
    parked = len(gateway.parking)
    yield _gauge("toolwire_parked_runs", "Runs that wait for the results of their calls.", parked)
    ended = CounterMetricFamily("toolwire_parks", "What became of parked runs.", labels=("outcome",))
    for outcome, count in gateway.parking.outcomes.items():
        ended.add_metric((outcome,), count)
    yield ended
    yield from _queues(gateway, models)
    if gateway.limits.shared is not None:
        shared = gateway.limits.shared.up
        yield _gauge("toolwire_shared_limits_up", "Whether limits in Redis can be reached.", shared)
    if gateway.store is not None:
        reachable = gateway.store.reachable
        yield _gauge("toolwire_store_up", "Whether the store was reached at its last use.", reachable)
    if gateway.journal is not None:
        held = gateway.journal.held_bytes
        yield _gauge("toolwire_journal_bytes", "Bytes of memory that the journal uses.", held)
    yield _gauge("toolwire_tasks", "Tasks of the event loop.", _tasks())


def _queues(gateway: Gateway, models: Container[str]) -> Iterator[Metric]:
    help = "Turns that a model runs now, if limits.backend_concurrent is set."
    running = GaugeMetricFamily("toolwire_model_running", help, labels=("model",))
    help = "Turns that wait for a model, if limits.backend_concurrent is set."
    waiting = GaugeMetricFamily("toolwire_model_waiting", help, labels=("model",))
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
    except RuntimeError:  # called outside the event loop
        return 0


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=float(value))
