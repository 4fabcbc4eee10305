"""Ranks find each other, and form their groups."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from engine.parallel.collectives import Collectives
from engine.parallel.layout import Layout
from engine.parallel.pipeline import Pipe

MEET = timedelta(seconds=120)
"""How long ranks may wait for each other, at the start and in an operation."""


def meet(
    layout: Layout,
    rank: int,
    store: Any,
    device: torch.device,
    host: str,
    lost: Callable[[], None],
) -> tuple[Collectives | None, Pipe | None]:
    """The group of the stage's ranks and the pipe, where there are several. ``device``: this rank's; ``host``: this
    host's address, as the others know it; ``lost``: called before an error of an operation is raised.

    Raises ``RuntimeError`` if not all ranks come."""
    store.set_timeout(MEET)
    stage, shard = layout.stage(rank), layout.shard(rank)

    def group(name: str, number: int, size: int) -> Collectives:
        return Collectives(store, name, number, size, device, host, MEET, lost)

    tensor, pipe = None, None
    if layout.tensor > 1:
        tensor = group(f"stage{stage}/", shard, layout.tensor)
        # NCCL connects at the first operation: the store is needed until then.
        tensor.all_reduce(torch.zeros(1, device=device))
    if layout.pipeline > 1:
        pipe = Pipe(*(group(f"{name}{shard}/", stage, layout.pipeline) for name in ("forward", "back")))
        pipe.send(torch.zeros(1, device=device))
        pipe.receive((1,), torch.float32, device)
    return tensor, pipe
