"""vLLM's metric names, with its meanings, labels and buckets, so that dashboards and autoscalers made for it work here.

Names: https://docs.vllm.ai/en/latest/usage/metrics.html (v1). As there, each choice of ``n`` is a request of its own.
Gauges are computed when they are scraped, so that a step costs what it finishes and not what it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.generation import Delta
from engine.messages import Ready, Step
from engine.server.histogram import TokenHistogram
from engine.server.responses import Finish

# fmt: off
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)
_PER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)
# fmt: on
_REASONS = ("stop", "length", "abort", "error")
_ENGINE = "0"
"""The label ``engine``: vLLM's index of the data-parallel engine, of which there is one."""

AdaptersInUse = Callable[[], tuple[set[str], set[str]]]
"""Names of the LoRA adapters of running and of waiting requests."""


@dataclass(slots=True)
class RequestTimeline:
    """When what happened to one sequence, in seconds of ``time.monotonic()``."""

    arrived: float
    """At the HTTP server."""
    submitted: float
    """To the scheduler."""
    queued: float = 0.0
    """Seconds from there to the first step."""
    first_token: float = 0.0
    last_token: float = 0.0
    tokens: int = 0
    """Generated, those after a stop string included."""
    finish: Finish | None = None
    """Why it ended; ``None``: not by itself, or not yet."""


class VllmMetrics:
    def __init__(
        self, registry: CollectorRegistry, model: str, ready: Ready, adapters_in_use: AdaptersInUse
    ) -> None:
        labels = {"model_name": model, "engine": _ENGINE}

        def counter(name: str, text: str, **more: str) -> Counter:
            return Counter(f"vllm:{name}", text, (*labels, *more), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, tuple(labels), registry=registry, buckets=buckets)
            return made.labels(**labels)

        lengths = tuple(_one_two_five(ready.max_model_len))
        self._ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.", _TTFT)
        self._itl = TokenHistogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a request.", _PER_TOKEN, labels
        )
        registry.register(self._itl)
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "A request's mean inter-token latency.", _PER_TOKEN
        )
        self._e2e = histogram("e2e_request_latency_seconds", "From arrival to the last token.", _LATENCY)
        self._queue = histogram("request_queue_time_seconds", "From submission to the first step.", _LATENCY)
        self._prefill = histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", _LATENCY
        )
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.", _LATENCY)
        self._inference = histogram(
            "request_inference_time_seconds", "From the first step to the last token.", _LATENCY
        )
        self._prompt_length = histogram("request_prompt_tokens", "Prompt tokens of a request.", lengths)
        self._length = histogram("request_generation_tokens", "Generated tokens of a request.", lengths)
        self._longest = histogram(
            "request_max_num_generation_tokens",
            "Generated tokens of the longest of a request's choices.",
            lengths,
        )
        self._preemptions = counter("num_preemptions", "Preempted requests.").labels(**labels)
        self._queries = counter(
            "prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache."
        ).labels(**labels)
        self._hits = counter("prefix_cache_hits", "Prompt tokens that the prefix cache had.").labels(**labels)
        success = counter("request_success", "Ended requests, by reason.", finished_reason="")
        self._success = {reason: success.labels(**labels, finished_reason=reason) for reason in _REASONS}
        config = {
            "block_size": str(ready.block_size),
            "cache_dtype": ready.kv_cache_dtype,
            "enable_prefix_caching": str(ready.prefix_caching),
            "num_gpu_blocks": str(ready.blocks),
            "engine": _ENGINE,
        }
        info = Gauge("vllm:cache_config_info", "The KV cache.", tuple(config), registry=registry)
        info.labels(**config).set(1)
        self._state = _State(labels, ready, adapters_in_use)
        registry.register(self._state)

    def observe(self, step: Step) -> None:
        self._state.step = step
        if step.preempted:
            self._preemptions.inc(step.preempted)
        if step.prefix_queries:
            self._queries.inc(step.prefix_queries)
            self._hits.inc(step.prefix_hits)

    def tokens(self, timeline: RequestTimeline, delta: Delta, prompt_tokens: int) -> None:
        """New tokens of a sequence."""
        count = len(delta.tokens)
        self._state.generation_tokens += count
        if timeline.tokens:
            self._itl.observe(delta.at - timeline.last_token)
        else:
            self._state.prompt_tokens += prompt_tokens
            self._ttft.observe(delta.at - timeline.arrived)
            timeline.first_token, timeline.queued = delta.at, delta.queued
        timeline.last_token = delta.at
        timeline.tokens += count

    def finish(self, timeline: RequestTimeline, reason: Finish, prompt_tokens: int) -> None:
        """A sequence has ended by itself."""
        timeline.finish = reason
        self._success["length" if reason == "length" else "stop"].inc()
        scheduled = timeline.submitted + timeline.queued
        decode = timeline.last_token - timeline.first_token
        self._e2e.observe(time.monotonic() - timeline.arrived)
        self._queue.observe(timeline.queued)
        self._prefill.observe(timeline.first_token - scheduled)
        self._decode.observe(decode)
        self._inference.observe(timeline.last_token - scheduled)
        self._tpot.observe(decode / (timeline.tokens - 1) if timeline.tokens > 1 else 0.0)
        self._prompt_length.observe(prompt_tokens)
        self._length.observe(timeline.tokens)

    def finish_group(self, longest: int) -> None:
        """All choices of an HTTP request's prompt have ended, the longest with so many tokens."""
        self._longest.observe(longest)

    def fail(self, *, aborted: bool) -> None:
        """A sequence was aborted by its client, or refused or lost by the engine."""
        self._success["abort" if aborted else "error"].inc()


class _State(Collector):
    """What is computed when it is scraped: gauges after the last step, and the counters of every token."""

    def __init__(self, labels: dict[str, str], ready: Ready, adapters_in_use: AdaptersInUse) -> None:
        self.step: Step | None = None
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._labels = labels
        self._ready = ready
        self._adapters_in_use = adapters_in_use

    def collect(self) -> Iterator[Metric]:
        step, blocks = self.step, self._ready.blocks
        used = blocks - step.blocks_free - step.blocks_cached if step else 0
        yield self._gauge("num_requests_running", "Running requests.", step.running if step else 0)
        yield self._gauge("num_requests_waiting", "Waiting requests.", step.waiting if step else 0)
        yield self._gauge("kv_cache_usage_perc", "Used share of the KV cache, from 0 to 1.", used / blocks)
        yield self._counter("prompt_tokens", "Tokens of prompts that were computed.", self.prompt_tokens)
        yield self._counter("generation_tokens", "Generated tokens.", self.generation_tokens)
        if self._ready.max_adapters:
            running, waiting = self._adapters_in_use()
            labels = {
                "max_lora": str(self._ready.max_adapters),
                "waiting_lora_adapters": ",".join(sorted(waiting)),
                "running_lora_adapters": ",".join(sorted(running)),
            }
            found = GaugeMetricFamily(
                "vllm:lora_requests_info", "LoRA adapters in use; the value is the time.", labels=list(labels)
            )
            found.add_metric(list(labels.values()), time.time())
            yield found

    def _counter(self, name: str, text: str, value: int) -> Metric:
        found = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        found.add_metric(list(self._labels.values()), value)
        return found

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        found = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        found.add_metric(list(self._labels.values()), value)
        return found


def _one_two_five(most: int) -> Iterator[float]:
    """1, 2, 5, 10, 20 … up to ``most``."""
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return
            yield float(digit * power)
        power *= 10
