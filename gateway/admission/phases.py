"""Prefill and decode apart: which engine computes the prompts of one that only decodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.admission.gate import engine_headers
from gateway.admission.pools import Pools
from gateway.engine_load import EngineLoad
from gateway.policy.schema import EngineBackend, Policy
from gateway.types import Call

Headers = Callable[[Call, float], dict[str, str]]
"""Of a call that goes to an engine, at a time."""


def headers_for(policy: Policy, pools: Pools) -> Headers:
    """Those that every engine understands, and where the policy has engines of phases the address of another one."""
    sources = {
        name: backend.prefill
        for name, backend in policy.backends.items()
        if isinstance(backend, EngineBackend) and backend.prefill
    }
    return Phases(pools, sources).headers if sources else engine_headers


@dataclass(slots=True)
class _Sent:
    """Prompts that an engine was sent since it told its load."""

    figures: EngineLoad
    count: int = 0


@dataclass(frozen=True, slots=True)
class Phases:
    pools: Pools
    sources: Mapping[str, Sequence[str]]
    """By backend, those that compute its prompts."""
    _sent: dict[str, _Sent] = field(default_factory=dict)

    def headers(self, call: Call, now: float) -> dict[str, str]:
        headers = engine_headers(call, now)
        decoding = call.candidate.target.backend if call.candidate is not None else ""
        if (chosen := self.choose(self.sources.get(decoding, ()))) is not None:
            name, address = chosen
            headers["x-tollgate-prefill"] = address
            call.receipt.note("prefill", backend=name)
        return headers

    def choose(self, names: Sequence[str]) -> tuple[str, str] | None:
        """The one with the fewest requests, and where it hands blocks over; ``None`` if none tells of itself."""
        best: tuple[int, str, str] | None = None
        for name in names:
            figures = self.pools.of(name).speed.engine
            if figures is None or not figures.handover:
                continue
            sent = self._sent.get(name)
            if sent is None or sent.figures is not figures:
                sent = self._sent[name] = _Sent(figures)
            load = figures.running + figures.waiting + sent.count
            if best is None or load < best[0]:
                best = load, name, figures.handover
        if best is None:
            return None
        _, name, address = best
        self._sent[name].count += 1
        return name, address
