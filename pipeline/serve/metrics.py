"""The metrics for Prometheus. No label names an account or a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.people.types import PostResult

_LATENCY_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
UNMATCHED: Final = "unmatched"  # the label of requests to no route: clients must not create labels


class Metrics(Collector):
    """The counters of one server. At each scrape `gauges` returns name -> (help, value). `stage_s`: seconds of each
    stage so far."""

    def __init__(self, gauges: Callable[[], Mapping[str, tuple[str, float]]], stage_s: Mapping[str, float]) -> None:
        self._gauges = gauges
        self._stage_s = stage_s
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        self._requests = self._counter("requests", "Requests answered.", ("method", "route", "status"))
        self._latency = Histogram(
            "facepipe_request_seconds",
            "From the request's headers to the end of its answer.",
            ("route",),
            buckets=_LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._faces = self._counter("faces", "Faces found in posted images.")
        self._matches = self._counter("matches", "Faces recognised as an identity.")
        self._insertions = self._counter("insertions", "Faces inserted as an identity.")
        self._rejections = self._counter("rejections", "Faces not inserted for their quality.")
        self._conflicts = self._counter("conflicts", "Faces that updated nobody, by the reason.", ("reason",))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request; `route` is a template."""
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def posted(self, result: PostResult) -> None:
        """Counts the faces of a post."""
        self._faces.inc(len(result.faces))
        self._insertions.inc(sum(face.inserted for face in result.faces))
        self._matches.inc(sum(face.person is not None and not face.inserted for face in result.faces))
        self._rejections.inc(sum(bool(face.rejected) for face in result.faces))
        for face in result.faces:
            if face.conflict is not None:
                self._conflicts.labels(face.conflict).inc()

    def collect(self) -> Iterator[Metric]:
        """The gauges and the stage seconds, for the registry."""
        for name, (description, value) in self._gauges().items():
            yield GaugeMetricFamily(f"facepipe_{name}", description, value)
        stages = CounterMetricFamily(
            "facepipe_stage_seconds", "The host's time for the models, by stage.", labels=["stage"]
        )
        for stage, seconds in self._stage_s.items():
            stages.add_metric([stage], seconds)
        yield stages

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, description: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"facepipe_{name}", description, labels, registry=self._registry)
