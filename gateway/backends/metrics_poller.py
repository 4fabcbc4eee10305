"""What model servers of others say of their load, in Prometheus' text format: vLLM, SGLang, TGI.

https://docs.vllm.ai/en/stable/usage/metrics/
https://docs.sglang.io/docs/references/production_metrics
https://huggingface.co/docs/text-generation-inference/reference/metrics
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx

from gateway.backends.engine_poller import EnginePoller
from gateway.engine_load import EngineLoad

FROZEN = 10.0
"""Seconds after which a page on which not one figure has changed is that of a server that does not look any more."""

MOST = 1e9
"""Of any figure: more is none."""


class Names(NamedTuple):
    """Of gauges; of several the first that is there."""

    running: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    kv_usage: tuple[bytes, ...] = ()


NAMES: Mapping[str, Names] = {
    "vllm": Names(
        (b"vllm:num_requests_running",),
        (b"vllm:num_requests_waiting",),
        # As it is called since 0.10, and before.
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    ),
    "sglang": Names((b"sglang:num_running_reqs",), (b"sglang:num_queue_reqs",), (b"sglang:token_usage",)),
    "tgi": Names((b"tgi_batch_current_size",), (b"tgi_queue_size",)),
}


class MetricsPoller(EnginePoller):
    """Polls ``/metrics`` beside a server's API."""

    most = 4 * 2**20

    def __init__(
        self,
        base_url: str,
        transport: httpx.AsyncBaseTransport,
        on_load: Callable[[EngineLoad], object],
        *,
        names: Names,
        clock: Callable[[], float] = time.monotonic,
        **more: Any,
    ) -> None:
        super().__init__(base_url, transport, on_load, **more)
        self._url = httpx.URL(base_url.rstrip("/").removesuffix("/v1") + "/metrics")
        self._names = names
        self._clock = clock
        self._last: bytes | None = None
        self._changed = 0.0

    def read(self, body: bytes) -> tuple[EngineLoad, Mapping[str, float]]:
        now = self._clock()
        if body != self._last:
            self._last, self._changed = body, now
        elif now - self._changed > FROZEN:
            raise ValueError("the page has not changed for a while")
        return load_of(body, self._names), {}


def load_of(page: bytes, names: Names) -> EngineLoad:
    """Raises ``ValueError`` for a page that has no such figures, or impossible ones.

    Several engines behind one port count together. A server that runs nothing is not full, whatever else it says: it
    would never be asked again.
    """
    running = sum(_first(page, names.running))
    waiting = sum(_first(page, names.waiting))
    usage = [*_first(page, names.kv_usage)] if names.kv_usage else []
    if not running:
        return EngineLoad()
    return EngineLoad(
        running=math.ceil(running),
        waiting=math.ceil(waiting),
        kv_usage=min(1.0, sum(usage) / len(usage)) if usage else 0.0,
    )


def _first(page: bytes, names: tuple[bytes, ...]) -> list[float]:
    for name in names:
        if values := [*_values(page, name)]:
            return values
    raise ValueError(f"the page has no {names[0].decode()}")


def _values(page: bytes, name: bytes) -> Iterator[float]:
    """Those of all samples of ``name``, whatever their labels. Others are not looked at: such pages are long."""
    start = 0
    while (start := page.find(name, start)) >= 0:
        begins, end = start, page.find(b"\n", start)
        start = end = len(page) if end < 0 else end
        after = page[begins + len(name) : begins + len(name) + 1]
        if (begins and page[begins - 1 : begins] != b"\n") or after not in (b"{", b" "):
            continue
        # A value follows the labels, in which any character may stand, and a time may follow it.
        rest = page[begins + len(name) : end]
        figures = (rest.rpartition(b"}")[2] or rest).split()
        value = float(figures[0] if figures else b"nan")
        if not 0 <= value < MOST:
            raise ValueError(f"{value} is no figure of {name.decode()}")
        yield value
