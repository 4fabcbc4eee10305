"""Collective operations of a group of ranks: gloo between CPUs, NCCL between GPUs.

The backends of torch.distributed are used without its default group: a process is in several groups, and each is bound
to the address that the ranks know this host by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Collectives:
    """Of ``size`` ranks, of which this is number ``rank``. All must call the same operations in the same order.

    Raises ``RuntimeError`` where another rank is gone, or does not come within ``timeout``."""

    def __init__(
        self,
        store: Any,
        name: str,
        rank: int,
        size: int,
        device: torch.device,
        host: str,
        timeout: timedelta,
        lost: Callable[[], None],
    ) -> None:
        """``store``: by which the ranks find each other; ``name``: of the group; ``host``: this host's address, as the
        others know it; ``device``: whose tensors are exchanged; ``lost``: called before an operation's error is
        raised."""
        self.rank = rank
        self.size = size
        self._lost = lost
        store = dist.PrefixStore(name, store)
        self._backend: Any
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._backend = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            gloo = dist.ProcessGroupGloo._Options()
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
            gloo._timeout = timeout
            self._backend = dist.ProcessGroupGloo(store, rank, size, gloo)

    def all_reduce(self, x: Tensor) -> None:
        """Replaces ``x`` by the sum of all ranks'."""
        self._wait(self._backend.allreduce([x]))

    def broadcast(self, x: Tensor) -> None:
        """Replaces ``x`` by rank 0's."""
        self._wait(self._backend.broadcast([x], dist.BroadcastOptions()))

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """All ranks' ``x``, of one shape."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._wait(self._backend.allgather([parts], [x]))
        return parts

    def gather(self, x: Tensor) -> list[Tensor]:
        """All ranks' ``x``, of one shape, on rank 0; nothing on the others."""
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else []
        self._wait(self._backend.gather([parts] if parts else [], [x], options))
        return parts

    def all_to_all(self, x: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        """``x`` [sum of ``sends``, width]: so many rows for each rank, one behind the other. Returns what came
        [sum of ``receives``, width]."""
        out = x.new_empty((sum(receives), *x.shape[1:]))
        self._wait(self._backend.alltoall_base(out, x, list(receives), list(sends), dist.AllToAllOptions()))
        return out

    def send(self, x: Tensor, to: int, tag: int) -> Any:
        """Returns at once; ``x`` is to be kept until the result's ``wait`` has returned."""
        return self._backend.send([x], to, tag)

    def receive(self, x: Tensor, source: int, tag: int) -> None:
        """Fills ``x``."""
        self._wait(self._backend.recv([x], source, tag))

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError:
            self._lost()
            raise
