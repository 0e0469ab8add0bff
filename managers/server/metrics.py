"""What `/metrics` shows: the server's own counts and times, and the scheduler's books read at the moment of asking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..wire.questions import Stats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_COUNTERS = (
    ("steps", "Steps the scheduler has planned"),
    ("finished", "Sequences that finished"),
    ("aborted", "Sequences that were aborted"),
    ("retracted", "Times a running sequence was retracted for want of slots"),
    ("evicted_tokens", "Tokens evicted from the prefix cache"),
)
_TOKENS = (
    ("prompt", "prompt_tokens"),
    ("cached", "cached_tokens"),
    ("computed", "computed_tokens"),
    ("generated", "generated_tokens"),
    ("speculated", "speculated_tokens"),
    ("drafted", "speculated_tokens"),  # the old name, for one release
    ("accepted", "accepted_tokens"),
    ("forced", "forced_tokens"),
)


class Metrics:
    """One server's metrics in a registry of their own, so that two servers in one process do not meet."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._books = _Books()
        self._registry.register(self._books)
        self.answers = Counter(
            "sapwood_http_requests", "HTTP requests answered", ["endpoint", "status"], registry=self._registry
        )
        self.ignored_fields = Counter(
            "sapwood_ignored_fields",
            "Fields of requests' bodies that had no effect, by name (of a fixed list)",
            ["field"],
            registry=self._registry,
        )
        self.open_requests = Gauge(
            "sapwood_http_requests_open", "Generation and scoring requests being answered", registry=self._registry
        )
        self.first_token_seconds = Histogram(
            "sapwood_time_to_first_token_seconds",
            "From the arrival of a request to its first token",
            registry=self._registry,
            buckets=_SECONDS,
        )
        self.inter_token_seconds = Histogram(
            "sapwood_inter_token_seconds",
            "Time between tokens of one completion",
            registry=self._registry,
            buckets=_TOKEN_SECONDS,
        )
        self.request_seconds = Histogram(
            "sapwood_request_seconds",
            "From the arrival of a request to its last token",
            registry=self._registry,
            buckets=_SECONDS,
        )

    def render(self, stats: Stats | None, dropped_by_front: int) -> bytes:
        """The Prometheus text form. `stats` is None where no scheduler answers; its metrics are then left out."""
        self._books.stats = stats
        self._books.dropped_by_front = dropped_by_front
        return generate_latest(self._registry)


class _Books(Collector):
    """Turns the scheduler's latest `Stats` into metrics."""

    def __init__(self) -> None:
        self.stats: Stats | None = None
        self.dropped_by_front = 0

    def collect(self) -> Iterable[Metric]:
        stats = self.stats
        yield _gauge("sapwood_engine_up", "1 while the scheduler answers", 1 if stats else 0)
        if stats is None:
            return
        yield _gauge("sapwood_running", "Sequences being computed", stats.running)
        yield _gauge("sapwood_waiting", "Sequences waiting in the queue", stats.waiting)
        slots = GaugeMetricFamily("sapwood_slots", "Slots of the KV pool by state", labels=["state"])
        for state in ("free", "private", "pinned", "evictable"):
            slots.add_metric([state], getattr(stats, state))
        yield slots
        yield _gauge("sapwood_slots_total", "Slots of the KV pool", stats.total)
        tokens = CounterMetricFamily("sapwood_tokens", "Tokens by what happened to them", labels=["kind"])
        for kind, name in _TOKENS:
            tokens.add_metric([kind], getattr(stats, name))
        yield tokens
        for name, text in _COUNTERS:
            yield _counter(f"sapwood_{name}", text, getattr(stats, name))
        yield _counter("sapwood_step_seconds", "Time the worker spent in steps", stats.step_seconds)
        yield _counter("sapwood_plan_seconds", "Time the scheduler spent planning steps", stats.plan_seconds)
        dropped = CounterMetricFamily("sapwood_dropped_frames", "Frames that did not decode", labels=["process"])
        dropped.add_metric(["front"], self.dropped_by_front)
        dropped.add_metric(["scheduler"], stats.dropped_frames)
        dropped.add_metric(["worker"], stats.worker_dropped_frames)
        yield dropped


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: Any) -> Metric:
    return CounterMetricFamily(name, text, value=value)
