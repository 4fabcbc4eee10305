"""The processes that share a model, as one of them knows them."""

from __future__ import annotations

from typing import Any

import torch

from engine.parallel.layout import Layout
from engine.parallel.part import WHOLE_MODEL, Part
from engine.parallel.pipeline import Pipe


class Ranks:
    """The base class is a process that has all of a model. ``engine/worker/ranks.py`` has the others."""

    def __init__(self, rank: int = 0, layout: Layout | None = None, *, part: Part = WHOLE_MODEL) -> None:
        self.rank = rank
        self.layout = layout or Layout()
        self.part = part
        """What this one has of the model."""
        self.pipe: Pipe | None = None
        """Where there are several stages."""

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def stages(self) -> int:
        return self.layout.pipeline

    def local_device(self, device: torch.device) -> torch.device:
        """The device of this rank, where each rank has a device of its own."""
        return device

    def all_reduce_min(self, blocks: int) -> int:
        """The smallest number of KV blocks that fits on any rank."""
        return blocks

    def send(self, message: object) -> None:
        """From rank 0: what all other ranks have to execute."""

    def send_plan(self, plan: Any, feed: Any = None) -> None:
        """From rank 0: the next step; ``feed``: what of the one before it is given, where that is not known yet."""

    def send_stage(self, message: object) -> None:
        """From rank 0: what the other ranks of the first stage have to execute."""

    def close(self) -> None:
        """Stops the other ranks' processes."""
