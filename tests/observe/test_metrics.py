"""Prometheus metrics of turns: names, labels, help and values."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from toolwire.gateway.records import TurnSummary
from toolwire.observe.metrics import SECONDS, Metrics

MODEL = {"api": "chat", "model": "m"}
COUNTS = (
    "requests_cancelled",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "tool_calls",
    "turns_truncated",
)
FAMILIES = {
    "toolwire_build_info": ("gauge", "The version of Toolwire."),
    "toolwire_requests": ("counter", "Turns that ended."),
    "toolwire_turns": ("counter", "Turns by how they began: new, resumed or replayed."),
    "toolwire_requests_cancelled": ("counter", "Turns cancelled because the client disconnected."),
    "toolwire_input_tokens": ("counter", "Tokens read by models, as the backends count them."),
    "toolwire_cached_tokens": ("counter", "Input tokens that came from a prompt cache."),
    "toolwire_output_tokens": ("counter", "Tokens written by models."),
    "toolwire_tool_calls": ("counter", "Tool calls sent to clients."),
    "toolwire_turns_truncated": ("counter", "Turns in which a rule in [tools] dropped calls or text."),
    "toolwire_first_byte_seconds": ("histogram", "Time to an answer's first byte."),
    "toolwire_request_seconds": ("histogram", "Time to an answer's last byte."),
    "toolwire_errors": ("counter", "Requests that ended in an error, by its kind."),
    "toolwire_streams_open": ("gauge", "Streams being sent now."),
    "toolwire_http_refusals": ("counter", "Requests refused before a turn began."),
}


def summary(**changes: Any) -> TurnSummary:
    request = {"request_id": "r", "key_id": "", "api": "chat", "model": "m", "stream": False, "report": ""}
    served = {"backend": "openai", "strategy": "native", "output_mode": "openai-json"}
    result = {"status": 200, "finish": "stop", "error_kind": None, "cancelled": False}
    calls = {"tool_call_count": 0, "tool_call_names": (), "tool_call_ids": (), "tool_call_truncated": False}
    usage = {"input_tokens": 9, "output_tokens": 3, "first_byte_s": 0.25, "duration_s": 0.5}
    return TurnSummary(**{**request, **served, **result, **calls, **usage, **changes})


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def families(metrics: Metrics) -> dict[str, tuple[str, str]]:
    """Returns the type and help of each metric, without the series that prometheus-client adds."""
    page = text_string_to_metric_families(metrics.page("")[0].decode())
    own = [one for one in page if one.name.startswith("toolwire_") and not one.name.endswith("_created")]
    return {family.name: (family.type, family.documentation) for family in own}


def test_the_metrics_are_the_same_before_and_after_the_first_turn() -> None:
    metrics = Metrics({"m"})
    assert families(metrics) == FAMILIES
    metrics.observe(summary(error_kind="backend"))
    assert families(metrics) == FAMILIES


def test_a_turn_is_counted_by_api_model_strategy_status_and_kind() -> None:
    metrics = Metrics({"m"})
    metrics.observe(summary())
    metrics.observe(summary(status=502, error_kind="backend", kind="resumed"))
    metrics.observe(summary(model="made-up"))
    for status in ("200", "502"):
        assert value(metrics, "toolwire_requests_total", **MODEL, strategy="native", status=status) == 1
    unknown = {**MODEL, "model": "unknown", "strategy": "native", "status": "200"}
    assert value(metrics, "toolwire_requests_total", **unknown) == 1
    assert value(metrics, "toolwire_turns_total", kind="new") == 2
    assert value(metrics, "toolwire_turns_total", kind="resumed") == 1
    assert value(metrics, "toolwire_errors_total", kind="backend") == 1


def test_counts_start_at_zero_with_a_models_first_turn() -> None:
    metrics = Metrics({"m"})
    metrics.observe(summary(input_tokens=0, output_tokens=0, first_byte_s=None))
    for name in COUNTS:
        assert value(metrics, f"toolwire_{name}_total", **MODEL) == 0
    assert value(metrics, "toolwire_first_byte_seconds_count", **MODEL) == 0
    assert value(metrics, "toolwire_request_seconds_count", **MODEL) == 1


def test_counts_add_up() -> None:
    metrics = Metrics({"m"})
    for _ in range(2):
        metrics.observe(summary(cached_tokens=4, tool_call_count=3, tool_call_truncated=True, cancelled=True))
    found = [value(metrics, f"toolwire_{name}_total", **MODEL) for name in COUNTS]
    assert found == [2, 18, 8, 6, 6, 2]


def test_a_counter_never_goes_down_whatever_usage_a_server_reports() -> None:
    metrics = Metrics({"m"})
    metrics.observe(summary())
    metrics.observe(summary(input_tokens=-5))
    assert value(metrics, "toolwire_input_tokens_total", **MODEL) == 9
    assert value(metrics, "toolwire_request_seconds_count", **MODEL) == 2


def test_times_are_histograms_whose_bounds_are_inclusive() -> None:
    metrics = Metrics({"m"})
    for seconds in (0.001, 0.005, 0.5, 1000.0):
        metrics.observe(summary(duration_s=seconds))
    bounds = (*(str(float(bound)) for bound in SECONDS), "+Inf")
    buckets = [value(metrics, "toolwire_request_seconds_bucket", **MODEL, le=bound) for bound in bounds]
    assert buckets == [2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]
    assert value(metrics, "toolwire_request_seconds_sum", **MODEL) == 1000.506


def test_two_servers_in_one_process_count_separately() -> None:
    one, other = Metrics({"m"}), Metrics({"m"})
    one.observe(summary())
    found = [value(metrics, "toolwire_turns_total", kind="new") for metrics in (one, other)]
    assert found == [1, None]
