"""The engine's state, for gateways and operators (``/v1/engine/state``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.core.adapter_slots import AdapterState
from engine.core.tiers.tiered_cache import TierState
from engine.messages import Ready, Step
from engine.server.handover_metrics import described
from engine.server.metrics import Throughput


@dataclass(slots=True)
class EngineState:
    name: str
    ready: Ready
    throughput: Throughput
    _last: Step | None = None
    _hit_tokens: int = 0
    _computed_tokens: int = 0
    _preemptions: int = 0
    _prefixes: list[tuple[int, int, str]] | None = None

    def observe(self, step: Step) -> None:
        self._last = step
        self._hit_tokens += step.hit_tokens
        self._computed_tokens += step.prefill_tokens
        self._preemptions += step.preempted
        if step.prefixes is not None:
            self._prefixes = step.prefixes

    def to_dict(self) -> dict[str, Any]:
        last, ready = self._last, self.ready
        free = last.blocks_free if last else ready.blocks
        cached = last.blocks_cached if last else 0
        used = ready.blocks - free - cached
        waiting = last.waiting_by_priority.items() if last else ()
        tiers = (last.tiers if last else None) or TierState()
        adapters = (last.adapters if last else None) or AdapterState(known=len(ready.adapters))
        prompts = self._hit_tokens + self._computed_tokens
        return {
            "model": self.name,
            "max_model_len": ready.max_model_len,
            "max_num_seqs": ready.max_num_seqs,
            "running": last.running if last else 0,
            "waiting": last.waiting if last else 0,
            "queue_depth": last.waiting if last else 0,
            "waiting_by_priority": {
                str(priority): count for priority, count in sorted(waiting, reverse=True)
            },
            "loading": last.loading if last else 0,
            "parked": last.parked if last else 0,
            "preemptions": self._preemptions,
            "kv_cache": {
                "block_size": ready.block_size,
                "blocks_total": ready.blocks,
                "blocks_used": used,
                "blocks_cached": cached,
                "blocks_free": free,
                "blocks_pinned": last.blocks_pinned if last else 0,
                "usage": used / ready.blocks,
            },
            "adapters": {
                "slots_total": ready.max_adapters,
                "slots_used": adapters.used,
                "memory_total": ready.max_cpu_adapters,
                "memory_used": adapters.held,
                "known": adapters.known,
                "waiting": adapters.waiting,
                "hits": adapters.hits,
                "swaps": adapters.swaps,
                "reads": adapters.reads,
            },
            "kv_tiers": {
                "host_blocks_total": ready.host_blocks,
                "host_blocks": tiers.host,
                "disk_blocks_total": ready.disk_blocks,
                "disk_blocks": tiers.disk,
                "blocks_saved": tiers.saved,
                "blocks_written": tiers.written,
                "blocks_loaded": tiers.loaded,
                "blocks_read": tiers.read,
                "blocks_refused": tiers.corrupt,
                "blocks_unwritten": tiers.unwritten,
            },
            "handover": described(
                ready.role or None, ready.handover_address, last.handover if last else None
            ),
            "prefix_cache": {
                "hit_tokens": self._hit_tokens,
                "hit_rate": round(self._hit_tokens / prompts, 4) if prompts else 0.0,
                # The keys: engine/core/prefix_cache.py. Hexadecimal, as 64 bits are too many for some JSON readers.
                "digest": [
                    {"key": f"{key:016x}", "tokens": tokens, **({"tier": tier} if tier else {})}
                    for key, tokens, tier in self._prefixes or ()
                ],
            },
            "speculation": {
                "proposed": last.proposed if last else 0,
                "accepted": last.accepted if last else 0,
            },
            "prefill_tokens_per_second": round(self.throughput.prefill_tokens_per_second, 1),
            "decode_tokens_per_second": round(self.throughput.decode_tokens_per_second, 1),
            "device": ready.device,
            "dtype": ready.dtype,
            "startup_seconds": {name: round(seconds, 3) for name, seconds in ready.startup.items()},
            "memory_bytes": ready.memory,
        }
