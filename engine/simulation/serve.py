"""Lines of JSON in, lines of JSON out: ``{"memory": …}``, ``{"arrivals": …}`` or ``{"simulate": …}``.

``memory`` answers what the engine's own arithmetic says of a cache: in which groups layers are, the bytes of a block,
and how many a request of the longest kind takes. ``arrivals`` are kept for the simulations that follow. What cannot be
done is answered with ``error``; the process ends with its input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from engine.core.block_demand import BlockDemand
from engine.errors import StartupError
from engine.kv_groups import group_layers
from engine.simulation.clock import StepClock
from engine.simulation.simulation import Arrival, Patience, Simulation, machine_of


class Service:
    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._block_tokens = 512

    def answer(self, line: str) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            if "memory" in asked:
                return memory(asked["memory"])
            if "arrivals" in asked:
                return self._keep(asked)
            given = asked["simulate"]
            patience = Patience(**given["patience"]) if "patience" in given else None
            simulation = Simulation(
                self._arrivals,
                machine_of(given["machine"]),
                StepClock.of(given["clock"]),
                block_tokens=self._block_tokens,
                patience=patience,
            )
            return simulation.run()
        except (ValueError, TypeError, KeyError, RuntimeError, StartupError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _keep(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._block_tokens = int(asked.get("block_tokens", 512))
        # Hashes have any size, and tokens 32 bits.
        numbers: dict[int, int] = {}
        self._arrivals = [
            Arrival(
                float(at),
                max(1, int(prompt)),
                max(1, int(output)),
                tuple(numbers.setdefault(block, len(numbers)) for block in blocks),
            )
            for at, prompt, output, blocks in asked["arrivals"]
        ]
        self._arrivals.sort(key=lambda arrival: arrival.at)
        return {"arrivals": len(self._arrivals)}


def memory(given: Mapping[str, Any]) -> dict[str, Any]:
    """``windows``: each layer's; ``layer_bytes``: of a token in one layer; ``longest``: tokens of the longest request;
    ``step_tokens``: most of a request in a step."""
    size = int(given.get("block_size", 16))
    longest = int(given["longest"])
    groups = group_layers(given["windows"], longest)
    places = max((len(group.layers) for group in groups), default=0)
    windows = [group.window for group in groups] or [None]
    return {
        "windows": windows,
        "block_bytes": int(places * size * given["layer_bytes"]),
        "request_blocks": BlockDemand(windows, size, int(given["step_tokens"])).of(longest),
    }


def run() -> int:
    service = Service()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(service.answer(line)) + "\n")
        sys.stdout.flush()
    return 0
