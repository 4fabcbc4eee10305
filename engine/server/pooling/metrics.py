"""Metrics and state of a server of vectors or scores, by the names that the generating one has for the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from engine.core.rate import Rate
from engine.pooling.messages import PoolingReady, PoolingStep
from engine.pooling.spec import Task
from engine.server.metrics import Instruments

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)


class PoolingMetrics:
    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()

        made = Instruments(self.registry)
        counter, gauge, histogram = made.counter, made.gauge, made.histogram

        def vllm(kind: type[Gauge] | type[Counter], name: str, text: str) -> Any:
            one = kind(f"vllm:{name}", text, ("model_name", "engine"), registry=self.registry)
            return one.labels(model_name=model, engine="0")

        self.requests = counter(
            "requests", "Requests by path and outcome: an HTTP status or hung_up.", "path", "status"
        )
        self.prompt_tokens = counter("prompt_tokens", "Tokens of accepted texts.")
        self._texts = counter("texts", "Texts, or pairs of texts, computed.")
        self._tokens = counter("prefill_tokens", "Tokens computed.")
        self._queue = histogram("queue_seconds", "From submission to a request's first batch.", _SECONDS)
        self._batch = histogram("step_batch_size", "Texts in a batch.", _SIZES)
        self._duration = histogram("step_duration_seconds", "Time a batch takes.", _SECONDS)
        self._running = gauge("running_requests", "Requests of which some texts are done and others not.")
        self._waiting = gauge("waiting_requests", "Requests of which no text is done.")
        self._out_of_memory = counter(
            "out_of_memory_steps",
            "Batches abandoned for lack of memory, and repeated smaller or with fewer requests.",
        )
        self._out_of_memory_seen = 0
        self._vllm_running = vllm(Gauge, "num_requests_running", "Running requests.")
        self._vllm_waiting = vllm(Gauge, "num_requests_waiting", "Waiting requests.")
        self._vllm_tokens = vllm(Counter, "prompt_tokens", "Tokens computed.")

    def observe(self, step: PoolingStep) -> None:
        self._running.set(step.running)
        self._waiting.set(step.waiting)
        self._vllm_running.set(step.running)
        self._vllm_waiting.set(step.waiting)
        self._out_of_memory.inc(step.out_of_memory - self._out_of_memory_seen)
        self._out_of_memory_seen = step.out_of_memory
        for seconds in step.queued:
            self._queue.observe(seconds)
        if step.sequences:
            self._batch.observe(step.sequences)
            self._duration.observe(step.seconds)
            self._texts.inc(step.sequences)
            self._tokens.inc(step.tokens)
            self._vllm_tokens.inc(step.tokens)

    def render(self) -> bytes:
        return generate_latest(self.registry)


@dataclass(slots=True)
class PoolingState:
    """For gateways and operators (``/v1/engine/state``): what the generating engine reports, as far as it applies."""

    name: str
    task: Task
    ready: PoolingReady
    _last: PoolingStep | None = None
    _speed: Rate = field(default_factory=Rate)

    def observe(self, step: PoolingStep) -> None:
        self._last = step
        if step.tokens:
            self._speed.add(step.tokens, step.seconds)

    def to_dict(self) -> dict[str, Any]:
        last, ready = self._last, self.ready
        return {
            "model": self.name,
            "task": self.task,
            "max_model_len": ready.max_model_len,
            "max_num_seqs": ready.max_num_seqs,
            "max_batched_tokens": ready.max_batched_tokens,
            "dimensions": ready.width if self.task == "embed" else None,
            "running": last.running if last else 0,
            "waiting": last.waiting if last else 0,
            "queue_depth": last.waiting if last else 0,
            "prefill_tokens_per_second": round(self._speed.value, 1),
            "device": ready.device,
            "dtype": ready.dtype,
            "startup_seconds": {name: round(seconds, 3) for name, seconds in ready.startup.items()},
            "memory_bytes": ready.memory,
        }
