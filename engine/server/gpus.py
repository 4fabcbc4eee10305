"""The figures of the GPUs that an engine computes on, for ``/metrics`` and ``/v1/engine/state``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.server.nvml import LIBRARY, GpuSample, Nvml, NvmlError

log = logging.getLogger("engine.server")

EVERY = 5.0
"""Seconds between two samples."""
_AGAIN = 60.0
"""Seconds until it is tried again where no GPU answers."""

FIGURES = {
    "utilization_ratio": ("utilization", "Share of the last moments in which a kernel ran."),
    "memory_utilization_ratio": (
        "memory_utilization",
        "Share of the last moments in which the GPU's memory was read or written.",
    ),
    "memory_used_bytes": ("memory_used", "Memory in use, by whomever."),
    "memory_total_bytes": ("memory_total", "Memory that the GPU has."),
    "pcie_receive_bytes_per_second": ("pcie_received", "From the host, over 20 ms."),
    "pcie_transmit_bytes_per_second": ("pcie_sent", "To the host, over 20 ms."),
    "nvlink_receive_bytes_per_second": ("nvlink_received", "From other GPUs, all links together."),
    "nvlink_transmit_bytes_per_second": ("nvlink_sent", "To other GPUs, all links together."),
    "temperature_celsius": ("temperature", "Of the chip."),
    "power_watts": ("power", "Drawn now, by the whole chip."),
    "power_limit_watts": ("power_limit", "What it may draw."),
}
"""By metric without ``tollgate_engine_gpu_``: the field of ``_Figures``, and what it says."""


@dataclass(frozen=True, slots=True)
class _Figures:
    """As ``GpuSample``, with NVLink's counters as rates."""

    at: float
    sample: GpuSample
    rates: dict[str, float | None] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        found: float | None = self.rates[name] if name in self.rates else getattr(self.sample, name)
        return found


class GpuSampler(Collector):
    """Asks NVML in a thread of its own, so that a driver that fails, hangs or vanishes holds up nothing. Figures that
    are older than three samples are not told."""

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        library: str = LIBRARY,
        every: float = EVERY,
        again: float = _AGAIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uuids = tuple(uuids)
        self._library = library
        self._every = every
        self._again = again
        self._clock = clock
        self._latest: dict[str, _Figures] = {}
        self._said: dict[str, str] = {}
        self._closed = threading.Event()

    def start(self) -> GpuSampler:
        """Without GPUs nothing is loaded and no thread starts."""
        if self._uuids:
            # A daemon, as one that hangs in the driver must not keep the process from its end.
            threading.Thread(target=self._run, name="gpus", daemon=True).start()
        return self

    def close(self) -> None:
        self._closed.set()

    def to_list(self) -> list[dict[str, Any]]:
        """Each GPU's figures, in the order of ranks; those that it does not tell are left out."""
        return [
            {"gpu": gpu, "uuid": uuid}
            | ({} if (name := one.sample.name) is None else {"name": name})
            | {
                figure: round(value, 3)
                for figure, (where, _) in FIGURES.items()
                if (value := one.value(where)) is not None
            }
            for gpu, uuid, one in self._fresh()
        ]

    def collect(self) -> Iterator[Metric]:
        fresh = list(self._fresh())
        if not fresh:
            return
        info = GaugeMetricFamily(
            "tollgate_engine_gpu_info", "A GPU, by rank.", labels=("gpu", "uuid", "name")
        )
        for gpu, uuid, one in fresh:
            info.add_metric((str(gpu), uuid, one.sample.name or ""), 1)
        yield info
        for figure, (where, text) in FIGURES.items():
            family = GaugeMetricFamily(f"tollgate_engine_gpu_{figure}", text, labels=("gpu",))
            for gpu, _, one in fresh:
                if (value := one.value(where)) is not None:
                    family.add_metric((str(gpu),), value)
            if family.samples:
                yield family

    def _fresh(self) -> Iterator[tuple[int, str, _Figures]]:
        latest, oldest = self._latest, self._clock() - 3 * self._every
        for gpu, uuid in enumerate(self._uuids):
            if (one := latest.get(uuid)) is not None and one.at >= oldest:
                yield gpu, uuid, one

    def _run(self) -> None:
        nvml: Nvml | None = None
        while not self._closed.is_set():
            try:
                nvml = nvml or Nvml(self._library)
            except (OSError, NvmlError) as error:
                self._say("all", error)
            found = self._sample(nvml) if nvml is not None else {}
            self._latest = found
            if nvml is not None and not found:
                # A driver that was exchanged, or a GPU that fell off the bus: only a new beginning helps.
                _close(nvml)
                nvml = None
            self._closed.wait(self._every if found else self._again)
        if nvml is not None:
            _close(nvml)

    def _sample(self, nvml: Nvml) -> dict[str, _Figures]:
        found: dict[str, _Figures] = {}
        for uuid in self._uuids:
            try:
                sample = nvml.sample(uuid)
            except NvmlError as error:
                self._say(uuid, error)
            else:
                found[uuid] = _since(self._latest.get(uuid), _Figures(self._clock(), sample))
                self._said.pop(uuid, None)
                self._said.pop("all", None)
        return found

    def _say(self, what: str, error: Exception) -> None:
        """Once, until it works again."""
        if self._said.get(what) != str(error):
            self._said[what] = str(error)
            log.warning("no figures of %s: %s", "GPUs" if what == "all" else f"GPU {what}", error)


def _since(before: _Figures | None, now: _Figures) -> _Figures:
    def rate(new: int | None, old: int | None) -> float | None:
        seconds = now.at - before.at if before is not None else 0.0
        if (
            new is None or old is None or new < old or seconds <= 0
        ):  # one that went back was reset with its driver
            return None
        return (new - old) / seconds

    old = before.sample if before is not None else now.sample
    return replace(
        now,
        rates={
            "nvlink_received": rate(now.sample.nvlink_received, old.nvlink_received),
            "nvlink_sent": rate(now.sample.nvlink_sent, old.nvlink_sent),
        },
    )


def _close(nvml: Nvml) -> None:
    try:
        nvml.close()
    except NvmlError as error:
        log.debug("%s", error)
