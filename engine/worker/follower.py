"""A rank other than the first, as its own process knows it."""

from __future__ import annotations

import time
from collections import deque

import torch

from engine.channel import Channel
from engine.nodes.sealed_channel import SealedChannel
from engine.parallel.meeting import meet
from engine.parallel.ranks import Ranks
from engine.worker.join import Join, join_part, layout_of, open_store
from engine.worker.plan_deltas import PlanDelta, PlanReceiver
from engine.worker.pulse import Pulse

_NOTICE = 5.0
"""Seconds that rank 0 gets to say which rank was lost, and to end this one."""


class FollowerRank(Ranks):
    """Raises ``EOFError`` when rank 0 has exited."""

    def __init__(self, join: Join, channel: Channel | SealedChannel, pulse: Pulse) -> None:
        """``pulse``: of the same channel. It ends when the model is loaded."""
        super().__init__(join.rank, layout_of(join.config))
        self._channel = channel
        self._pulse = pulse
        self._plans = PlanReceiver()
        self._inbox: deque[object] = deque()
        self._device = device = torch.device(join.device)
        pulse.send(True)
        if device.index is not None:
            torch.cuda.set_device(device)
        store = open_store(join.store, self.size)
        tensor, self.pipe = meet(self.layout, join.rank, store, device, join.host, _lost)
        # Rank 0 keeps the store until all have met: groups that it is not in may be later than its own.
        pulse.send(True)
        self.part = join_part(join.config, join.rank, tensor, vocabulary=join.vocabulary)

    def local_device(self, device: torch.device) -> torch.device:
        return self._device

    def all_reduce_min(self, blocks: int) -> int:
        self._pulse.end()
        self._channel.send(blocks)
        least = self.receive()
        if not isinstance(least, int):
            raise TypeError(f"a number of blocks was expected, not {least!r}")
        return least

    def receive(self) -> object:
        """Rank 0's next message."""
        while not self._inbox:
            self._inbox.extend(self._channel.receive(None))
        message = self._inbox.popleft()
        return self._plans.plan(message) if isinstance(message, PlanDelta) else message


def _lost() -> None:
    """An operation has noticed that another rank is gone: were this one to exit now, rank 0 might think it was it."""
    time.sleep(_NOTICE)
