"""What model servers of others say of their load, in Prometheus' text format: vLLM, SGLang, TGI.

https://docs.vllm.ai/en/stable/usage/metrics/
https://docs.sglang.io/docs/references/production_metrics
https://huggingface.co/docs/text-generation-inference/reference/metrics
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import httpx

from gateway.backends.engine_poller import EnginePoller
from gateway.engine_load import EngineLoad

FROZEN = 10.0
"""Seconds after which a page on which not one figure has changed is that of a server that does not look any more."""

MOST, MOST_COUNTED = 1e9, 1e18
"""Of any figure, and of a counter's: more is none."""
_LABEL = re.compile(rb'[{,]\s*([a-z_]+)\s*=\s*"(\d{1,12})"')


class Names(NamedTuple):
    """Of samples; of several names the first that is there."""

    running: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    kv_usage: tuple[bytes, ...] = ()
    prompts: tuple[bytes, ...] = ()
    """Tokens of prompts, since it was started."""
    cached: tuple[bytes, ...] = ()
    """And those of them that were in its KV cache."""
    kv_tokens: tuple[bytes, ...] = ()
    """For which that has room; or one whose labels say so."""


NAMES: Mapping[str, Names] = {
    "vllm": Names(
        (b"vllm:num_requests_running",),
        (b"vllm:num_requests_waiting",),
        # As it is called since 0.10, and before.
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        (b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total"),
        (b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total"),
        (b"vllm:cache_config_info",),
    ),
    "sglang": Names(
        (b"sglang:num_running_reqs",),
        (b"sglang:num_queue_reqs",),
        (b"sglang:token_usage",),
        (b"sglang:prompt_tokens_total",),
        (b"sglang:cached_tokens_total",),
        (b"sglang:max_total_num_tokens",),
    ),
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
        on_page: Callable[[bytes], object] = lambda page: None,
        **more: Any,
    ) -> None:
        """``on_page`` is called with each page."""
        super().__init__(base_url, transport, on_load, **more)
        self._url = httpx.URL(base_url.rstrip("/").removesuffix("/v1") + "/metrics")
        self._names = names
        self._on_page = on_page
        self._clock = clock
        self._last: bytes | None = None
        self._changed = 0.0

    def read(self, body: bytes) -> tuple[EngineLoad, Mapping[str, float]]:
        now = self._clock()
        if body != self._last:
            self._last, self._changed = body, now
        elif now - self._changed > FROZEN:
            raise ValueError("the page has not changed for a while")
        load = load_of(body, self._names)
        self._on_page(body)
        return load, {}


def load_of(page: bytes, names: Names) -> EngineLoad:
    """Raises ``ValueError`` for a page that has no such figures, or impossible ones.

    Several engines behind one port count together. A server that runs nothing is not full, whatever else it says: it
    would never be asked again.
    """
    running = sum(_first(page, names.running))
    waiting = sum(_first(page, names.waiting))
    usage = [*_first(page, names.kv_usage)] if names.kv_usage else []
    load = EngineLoad(
        kv_tokens=int(_room(page, names.kv_tokens)),
        prompts=_counted(page, names.prompts),
        cached=_counted(page, names.cached),
    )
    if not running:
        return load
    return replace(
        load,
        running=math.ceil(running),
        waiting=math.ceil(waiting),
        kv_usage=min(1.0, sum(usage) / len(usage)) if usage else 0.0,
    )


def _room(page: bytes, names: tuple[bytes, ...]) -> float:
    """Tokens; 0 where it does not say. vLLM has blocks and their size in labels of a sample that is always 1."""
    room = 0.0
    for name in names:
        for labels, value in samples(page, name):
            known = {key: int(found) for key, found in _LABEL.findall(labels)}
            if b"num_gpu_blocks" in known:
                room += known[b"num_gpu_blocks"] * known.get(b"block_size", 0)
            elif not name.endswith(b"_info"):
                room += value
    return room if 0 <= room < MOST_COUNTED else 0.0


def _counted(page: bytes, names: tuple[bytes, ...]) -> float:
    """0 where it does not count."""
    for name in names:
        if values := [value for _, value in samples(page, name)]:
            found = sum(values)
            return found if 0 <= found < MOST_COUNTED else 0.0
    return 0.0


def _first(page: bytes, names: tuple[bytes, ...]) -> list[float]:
    for name in names:
        if values := [*_values(page, name)]:
            return values
    raise ValueError(f"the page has no {names[0].decode()}")


def _values(page: bytes, name: bytes) -> Iterator[float]:
    for _, value in samples(page, name):
        if not 0 <= value < MOST:
            raise ValueError(f"{value} is no figure of {name.decode()}")
        yield value


def samples(page: bytes, name: bytes) -> Iterator[tuple[bytes, float]]:
    """Labels and value of all samples of ``name``. Others are not looked at: such pages are long."""
    start = 0
    while (start := page.find(name, start)) >= 0:
        begins, end = start, page.find(b"\n", start)
        start = end = len(page) if end < 0 else end
        after = page[begins + len(name) : begins + len(name) + 1]
        if (begins and page[begins - 1 : begins] != b"\n") or after not in (b"{", b" "):
            continue
        # A value follows the labels, in which any character may stand, and a time may follow it.
        rest = page[begins + len(name) : end]
        labels, _, figures = rest.rpartition(b"}")
        value = (figures or rest).split()
        yield labels, float(value[0] if value else b"nan")
