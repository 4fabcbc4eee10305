"""What an engine with a role has computed for others, and others for it: metrics and state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from prometheus_client import Counter

from engine.core.tiers.remote import HandoverState

_PROMPTS = {
    "fetched": "fetched_prompts",
    "failed": "failed",
    "short": "short",
    "given": "given_prompts",
    "abandoned": "abandoned",
}
_BLOCKS = {"fetched": "fetched_blocks", "refused": "corrupt", "given": "given_blocks"}


class HandoverMetrics:
    def __init__(self, prompts: Counter, blocks: Counter) -> None:
        """Both by their label ``outcome``."""
        self._prompts, self._blocks = prompts, blocks
        self._last = HandoverState()

    def observe(self, state: HandoverState) -> None:
        for counter, names in ((self._prompts, _PROMPTS), (self._blocks, _BLOCKS)):
            for outcome, name in names.items():
                counter.labels(outcome).inc(getattr(state, name) - getattr(self._last, name))
        self._last = state


def described(role: str | None, address: str, state: HandoverState | None) -> dict[str, Any]:
    """For ``/v1/engine/state``."""
    return {"role": role, "address": address or None, **asdict(state or HandoverState())}
