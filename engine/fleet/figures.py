"""What an engine of several models says of itself: each model's state, and the sum of those that are loaded."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.fleet.exchange import MemberGone
from engine.fleet.keeper import Keeper
from engine.fleet.model import Model, State

_PATIENCE = 0.5
"""Seconds for a model's own figures."""


class Figures:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def status(self, model: Model) -> dict[str, Any]:
        """Of ``/v1/models``; ``value`` and ``failed`` are as llama.cpp's server names them."""
        terms = model.entry.terms
        return {
            "value": model.state.value,
            "failed": bool(model.failed_loads),
            "pinned": terms.pinned,
            "min": terms.min,
            "in_flight": model.in_flight,
            "waiting": len(model.waiting),
            "expected_wait_seconds": round(0.0 if model.grants else self._keeper.expected_wait(model), 2),
            "memory_bytes": model.held,
            "need_bytes": model.need,
            "loads": model.loads,
            "deaths": model.deaths,
            **({"error": model.last_error} if model.last_error else {}),
        }

    async def state(self) -> dict[str, Any]:
        """Of ``/v1/engine/state``: in the fields of one model's, as gateways read them, and ``models``."""
        keeper = self._keeper
        loaded = [model for model in keeper.models.values() if model.state is State.LOADED]
        found = await asyncio.gather(*map(_own_state, loaded))
        states = {model.name: one for model, one in zip(loaded, found, strict=True) if one is not None}
        waiting = sum(len(model.waiting) for model in keeper.models.values())
        return {
            "running": sum(int(one.get("running", 0)) for one in states.values()),
            "waiting": waiting + sum(int(one.get("waiting", 0)) for one in states.values()),
            "max_num_seqs": sum(int(one.get("max_num_seqs", 0)) for one in states.values()),
            "kv_cache": {"usage": max((_usage(one) for one in states.values()), default=0.0)},
            "prefill_tokens_per_second": _sum(states, "prefill_tokens_per_second"),
            "decode_tokens_per_second": _sum(states, "decode_tokens_per_second"),
            "gpus": next((one["gpus"] for one in states.values() if one.get("gpus")), []),
            "swaps": keeper.swaps,
            "memory": {
                "budget": keeper.budget.total,
                "own": keeper.budget.own,
                "taken": keeper.budget.taken,
            },
            "models": {
                model.name: {
                    **self.status(model),
                    **({"engine": states[model.name]} if model.name in states else {}),
                }
                for model in keeper.models.values()
            },
        }


async def _own_state(model: Model) -> dict[str, Any] | None:
    if model.member is None:
        return None
    try:
        return await asyncio.wait_for(model.member.state(), _PATIENCE)
    except (MemberGone, TimeoutError):
        return None


def _usage(state: dict[str, Any]) -> float:
    return float(state.get("kv_cache", {}).get("usage", 0.0))


def _sum(states: dict[str, dict[str, Any]], name: str) -> float:
    return round(sum(float(one.get(name, 0.0)) for one in states.values()), 1)
