"""What stages of a pipeline hand on: activations, from each to the next, and from the last to the first."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from engine.parallel.collectives import Collectives


class Pipe:
    """This rank's end of it. Steps go through in the order in which they were planned.

    Nothing is awaited that is sent: the first stage has a step in each of the others, and one that waited for it to be
    received would keep those from going on."""

    def __init__(self, forward: Collectives, back: Collectives) -> None:
        """``forward`` and ``back``: of the ranks with the same shard of each stage. Ways back have a group of their
        own, so that NCCL does not queue them behind what goes forward."""
        self._forward = forward
        self._back = back
        self._sent: deque[tuple[Any, Tensor]] = deque()
        self._sends = self._receives = 0

    def send(self, x: Tensor) -> None:
        """To the next stage, or from the last one to the first."""
        stage, stages = self._forward.rank, self._forward.size
        x = x.contiguous()
        group = self._back if stage == stages - 1 else self._forward
        self._sent.append((group.send(x, (stage + 1) % stages, self._sends), x))
        self._sends += 1
        while len(self._sent) > stages:
            # That stage has got it: it could not have returned what was sent so much later.
            self._sent.popleft()[0].wait()

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """From the stage before this one, or from the last one to the first."""
        stage, stages = self._forward.rank, self._forward.size
        x = torch.empty(shape, dtype=dtype, device=device)
        group = self._forward if stage else self._back
        group.receive(x, (stage - 1) % stages, self._receives)
        self._receives += 1
        return x
