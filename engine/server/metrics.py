"""Prometheus metrics (``/metrics``), and the measured speeds that a gateway needs."""

from __future__ import annotations

import time
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.core.adapter_slots import AdapterState
from engine.core.rate import Rate
from engine.core.tiers.tiered_cache import TierState
from engine.messages import Ready, Step
from engine.server.handover_metrics import HandoverMetrics
from engine.server.histogram import TokenHistogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)


class Instruments:
    """Makes metrics by the names that all of the engine's have."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tollgate_engine_{name}", text, labels, registry=self._registry)

    def gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"tollgate_engine_{name}", text, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"tollgate_engine_{name}", text, registry=self._registry, buckets=buckets)


class EngineMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = Instruments(self.registry)
        counter, gauge, histogram = made.counter, made.gauge, made.histogram

        self.requests = counter(
            "requests", "Requests by path and outcome: an HTTP status or hung_up.", "path", "status"
        )
        self.ttft = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", _SECONDS
        )
        self.itl = TokenHistogram(
            "tollgate_engine_inter_token_latency_seconds", "Between two tokens of a sequence.", _SHORT
        )
        self.registry.register(self.itl)
        self.queue = histogram("queue_seconds", "From submission to the first step.", _SECONDS)
        self.prompt_tokens = counter("prompt_tokens", "Tokens of accepted prompts.")
        self.generated_tokens = counter("generated_tokens", "Tokens generated.")
        self._prefilled = counter("prefill_tokens", "Prompt tokens computed, recomputed ones included.")
        self._preemptions = counter("preemptions", "Sequences that lost their KV blocks to an older one.")
        self._hits = counter("prefix_hit_tokens", "Prompt tokens that the prefix cache had.")
        self._proposed = counter("speculation_proposed_tokens", "Draft tokens verified.")
        self._accepted = counter("speculation_accepted_tokens", "Draft tokens accepted.")
        self._drafts = (0, 0)
        self._compilations = counter(
            "compilations", "Kernels compiled after the warm-up, each stalling all requests: should stay 0."
        )
        self._out_of_memory = counter(
            "out_of_memory_steps",
            "Steps abandoned for lack of memory, and repeated smaller or with fewer requests.",
        )
        self._incidents = (0, 0)
        self._running = gauge("running_requests", "Sequences in the batch.")
        self._waiting = gauge("waiting_requests", "Sequences that wait for a slot in the batch.")
        self._parked = gauge(
            "parked_requests", "Sequences whose client reads too slowly: nothing is computed for them."
        )
        self._by_priority = Gauge(
            "tollgate_engine_waiting_requests_by_priority",
            "Waiting requests, by priority.",
            ("priority",),
            registry=self.registry,
        )
        self._priorities: set[int] = set()
        self._blocks_total = gauge("kv_blocks_total", "KV blocks.")
        self._blocks_used = gauge("kv_blocks_used", "KV blocks held by sequences.")
        self._blocks_free = gauge("kv_blocks_free", "Empty KV blocks.")
        self._blocks_cached = gauge("kv_blocks_cached", "KV blocks without a holder, kept for their content.")
        self._blocks_pinned = gauge("kv_blocks_pinned", "KV blocks kept for prompts that asked for it.")
        self._loading = gauge(
            "loading_requests", "Sequences that wait for KV blocks from host memory or disk."
        )
        self._host_blocks = gauge("kv_host_blocks", "KV blocks of which host memory has a copy.")
        self._disk_blocks = gauge("kv_disk_blocks", "KV blocks of which the disk has a copy.")
        self._moved = {
            "saved": counter("kv_blocks_saved", "KV blocks copied to host memory."),
            "written": counter("kv_blocks_written", "KV blocks copied to the disk."),
            "loaded": counter("kv_blocks_loaded", "KV blocks copied back to the device."),
            "read": counter("kv_blocks_read", "KV blocks read from the disk."),
            "corrupt": counter(
                "kv_blocks_refused", "KV blocks on disk that were not what was written, and computed again."
            ),
            "unwritten": counter(
                "kv_blocks_unwritten", "KV blocks that could not be written: the disk is full, or fails."
            ),
        }
        self._tiers = TierState()
        self._adapter_gauges = {
            "used": gauge("adapter_slots_used", "Slots with a LoRA adapter."),
            "held": gauge("adapters_in_memory", "LoRA adapters in host memory."),
            "known": gauge("adapters", "LoRA adapters that requests can ask for."),
            "waiting": gauge(
                "adapter_waiting_requests", "Sequences that wait, and whose LoRA adapter has no slot."
            ),
        }
        self._adapter_counters = {
            "hits": counter("adapter_hits", "Sequences admitted whose LoRA adapter had a slot."),
            "swaps": counter(
                "adapter_swaps", "Sequences admitted for which a LoRA adapter was copied into a slot."
            ),
            "reads": counter("adapter_reads", "LoRA adapters read from the disk again."),
        }
        self._adapters = AdapterState()
        self._handover = HandoverMetrics(
            counter(
                "handover_prompts", "Prompts between engines with a role, by what came of them.", "outcome"
            ),
            counter("handover_blocks", "KV blocks between engines with a role.", "outcome"),
        )
        self._batch = histogram("step_batch_size", "Sequences in a step.", _SIZES)
        self._duration = histogram("step_duration_seconds", "Time a step takes.", _SHORT)

    def set_ready(self, ready: Ready) -> None:
        self._blocks_total.set(ready.blocks)
        self._blocks_free.set(ready.blocks)

    def observe(self, step: Step, blocks: int) -> None:
        self._running.set(step.running)
        self._waiting.set(step.waiting)
        self._parked.set(step.parked)
        if step.waiting_by_priority or self._priorities:
            # A priority seen once is reported as 0 later, not left out.
            self._priorities |= step.waiting_by_priority.keys()
            for priority in self._priorities:
                self._by_priority.labels(str(priority)).set(step.waiting_by_priority.get(priority, 0))
        self._blocks_free.set(step.blocks_free)
        self._blocks_cached.set(step.blocks_cached)
        self._blocks_used.set(blocks - step.blocks_free - step.blocks_cached)
        incidents = step.compilations, step.out_of_memory
        self._compilations.inc(incidents[0] - self._incidents[0])
        self._out_of_memory.inc(incidents[1] - self._incidents[1])
        self._incidents = incidents
        self._blocks_pinned.set(step.blocks_pinned)
        self._loading.set(step.loading)
        if step.adapters is not None:
            for name, shown in self._adapter_gauges.items():
                shown.set(getattr(step.adapters, name))
            for name, counted in self._adapter_counters.items():
                counted.inc(getattr(step.adapters, name) - getattr(self._adapters, name))
            self._adapters = step.adapters
        if step.tiers is not None:
            self._host_blocks.set(step.tiers.host)
            self._disk_blocks.set(step.tiers.disk)
            for name, moved in self._moved.items():
                moved.inc(getattr(step.tiers, name) - getattr(self._tiers, name))
            self._tiers = step.tiers
        if step.handover is not None:
            self._handover.observe(step.handover)
        for _, seconds in step.queued:
            self.queue.observe(seconds)
        if step.sequences:
            self._batch.observe(step.sequences)
            self._duration.observe(step.seconds)
            self._prefilled.inc(step.prefill_tokens)
            self._preemptions.inc(step.preempted)
            self._hits.inc(step.hit_tokens)
            self._proposed.inc(step.proposed - self._drafts[0])
            self._accepted.inc(step.accepted - self._drafts[1])
            self._drafts = (step.proposed, step.accepted)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class Throughput:
    """Measured speeds: exponential moving averages over busy time, with a time constant of ten seconds."""

    def __init__(self) -> None:
        self._prefill = Rate()
        self._decode = Rate()
        self._finished: deque[float] = deque(maxlen=64)

    @property
    def prefill_tokens_per_second(self) -> float:
        return self._prefill.value

    @property
    def decode_tokens_per_second(self) -> float:
        return self._decode.value

    def observe(self, step: Step) -> None:
        # A mixed step's time is attributed in proportion to its tokens.
        tokens = step.prefill_tokens + step.decode_tokens
        if tokens:
            self._prefill.add(step.prefill_tokens, step.seconds * step.prefill_tokens / tokens)
            self._decode.add(step.decode_tokens, step.seconds * step.decode_tokens / tokens)

    def finish(self) -> None:
        """A sequence has ended, and left its slot to a waiting one."""
        self._finished.append(time.monotonic())

    def retry_after(self, waiting: int) -> float:
        """Seconds until half of the ``waiting`` sequences will have got a slot, at the rate at which slots become
        free."""
        if len(self._finished) < 2:
            return 5.0
        span = time.monotonic() - self._finished[0]
        return min(60.0, max(1.0, waiting / 2 * span / len(self._finished)))
