"""What Prometheus sees.

Rules: labels come from small closed sets, and no client's word makes a series: a model that is not configured counts as `unknown`, an error goes by
its kind, a key by nothing at all (`/v1/usage` knows keys). A turn that ends is a few additions (`_Turns`); what Prometheus makes of them, and what
is true only now (streams, queues, parks), is looked up when somebody asks.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from importlib.metadata import version
from itertools import accumulate
from operator import add, attrgetter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from toolwire.cluster.nodes import Nodes
    from toolwire.gateway.pipeline import Gateway, TurnSummary

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
UNKNOWN = "unknown"


class Metrics:
    """One server's registry. `observe` goes into the gateway's observers."""

    def __init__(self, models: Container[str]) -> None:
        self._models = models
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("toolwire_build", "What runs here.", registry=registry).info({"version": version("toolwire")})
        self._turns = _Turns()
        registry.register(_Now(self._turns.families))
        self.errors = Counter("toolwire_errors", "Requests that ended in an error, by its kind.", ("kind",), registry=registry)
        self.streams_open = Gauge("toolwire_streams_open", "Streams being sent now.", registry=registry)
        self.refused = Counter("toolwire_http_refusals", "Requests refused before a turn began.", ("status",), registry=registry)

    def observe(self, summary: TurnSummary) -> None:
        self._turns.count(summary, summary.model if summary.model in self._models else UNKNOWN)
        if summary.error_kind is not None:
            self.errors.labels(summary.error_kind).inc()

    def watch(self, gateway: Gateway) -> None:
        """Tells of what the gateway holds now."""
        self.registry.register(_Now(lambda: _of_gateway(gateway, self._models)))

    def watch_nodes(self, nodes: Nodes) -> None:
        self.registry.register(_Now(lambda: iter((_gauge("toolwire_redis_up", "Whether the nodes' board can be reached.", nodes.up),))))

    def page(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type, in the format the scraper asks for."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type


# --- turns -------------------------------------------------------------------------------------------------------------------------------------

COUNTS = (
    ("toolwire_requests_cancelled", "Turns cancelled because the client left.", "cancelled"),
    ("toolwire_input_tokens", "Tokens read by models, as the backends count them.", "input_tokens"),
    ("toolwire_cached_tokens", "Of these, tokens that a cache held.", "cached_tokens"),
    ("toolwire_output_tokens", "Tokens written by models.", "output_tokens"),
    ("toolwire_tool_calls", "Tool calls sent to clients.", "tool_call_count"),
    ("toolwire_turns_truncated", "Turns in which policy dropped tool calls or text.", "tool_call_truncated"),
)
"""Each with what a turn's summary calls it."""
TIMES = (("toolwire_first_byte_seconds", "Time to an answer's first byte."), ("toolwire_request_seconds", "Time to an answer's last byte."))


_counts = attrgetter(*(counted for *_, counted in COUNTS))


class _Times:
    """How long things took: how many within each of `SECONDS`, and all together."""

    __slots__ = ("_buckets", "_sum")

    def __init__(self) -> None:
        self._buckets = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def took(self, seconds: float) -> None:
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        within = zip((*map(floatToGoString, SECONDS), "+Inf"), accumulate(self._buckets), strict=True)
        family.add_metric(labels, [(name, float(count)) for name, count in within], self._sum)


class _Turns:
    """What is counted of turns that ended."""

    def __init__(self) -> None:
        self._series: dict[tuple[str | int, ...], int] = {}
        """Turns by API, model, strategy, status, and how they began."""
        self._models: dict[tuple[str, str], tuple[list[int], tuple[_Times, _Times]]] = {}
        """By API and model: `COUNTS`, and `TIMES`."""

    def count(self, summary: TurnSummary, model: str) -> None:
        series, by_model = (summary.api, model, summary.strategy, summary.status, summary.kind), (summary.api, model)
        self._series[series] = self._series.get(series, 0) + 1
        found = self._models.get(by_model)
        if found is None:
            found = self._models[by_model] = ([0] * len(COUNTS), (_Times(), _Times()))
        counts, (first_byte, duration) = found
        counts[:] = map(add, counts, _counts(summary))
        duration.took(summary.duration_s)
        if summary.first_byte_s is not None:
            first_byte.took(summary.first_byte_s)

    def families(self) -> Iterator[Metric]:
        yield self._totals(CounterMetricFamily("toolwire_requests", "Turns that ended.", labels=("api", "model", "strategy", "status")), slice(4))
        told = "Turns by how they began: new, resumed from a park, replayed."
        yield self._totals(CounterMetricFamily("toolwire_turns", told, labels=("kind",)), slice(4, 5))
        for number, (name, told, _) in enumerate(COUNTS):
            family = CounterMetricFamily(name, told, labels=("api", "model"))
            for labels, (counts, _) in self._models.items():
                family.add_metric(labels, counts[number])
            yield family
        for number, (name, told) in enumerate(TIMES):
            histogram = HistogramMetricFamily(name, told, labels=("api", "model"))
            for labels, (_, times) in self._models.items():
                times[number].add_to(histogram, labels)
            yield histogram

    def _totals(self, family: CounterMetricFamily, which: slice) -> Metric:
        """Turns by some of the labels that they are counted by."""
        totals: dict[tuple[str, ...], int] = {}
        for series, count in self._series.items():
            labels = tuple(str(label) for label in series[which])
            totals[labels] = totals.get(labels, 0) + count
        for labels, count in totals.items():
            family.add_metric(labels, count)
        return family


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
