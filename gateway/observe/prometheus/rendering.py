"""Metrics as text: one worker's in slices, so that no request waits for all of it, or those of all workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.observe.prometheus.families import Collected

SAMPLES_AT_ONCE = 100
"""Rendered without a pause: about a millisecond."""
KIND = CONTENT_TYPE_LATEST
"""The type of the text."""


class _One:
    """A collector of one metric's samples."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def slices(collected: Collected) -> Iterator[bytes]:
    """One metric."""
    samples = iter(collected._samples())
    is_first = True
    while True:
        metric = collected._get_metric()  # type: ignore[no-untyped-call]
        for suffix, *sample in islice(samples, SAMPLES_AT_ONCE):
            metric.add_sample(collected._name + suffix, *sample)
        if is_first:
            yield generate_latest(_One(metric))
        elif metric.samples:
            _help, _type, text = generate_latest(_One(metric)).split(b"\n", 2)
            yield text
        if len(metric.samples) < SAMPLES_AT_ONCE:
            return
        is_first = False


def render_shared(folder: Path) -> bytes:
    """The metrics of all workers, added up."""
    _remove_dead_gauges(folder)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def _remove_dead_gauges(folder: Path) -> None:
    """A worker that was killed has nothing in flight, whatever its last gauges say."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            file.unlink(missing_ok=True)
