"""How rank 0 starts the other ranks of a tensor-parallel group, and communicates with them.

Rank 0 sends them its plans over socket pairs, and they execute the same; nothing comes back but the layers' sums. Only
rank 0 samples tokens. When a rank dies all exit at once, as a part of a model is of no use. ``rank_process.py`` is the
entry point of the others.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from engine.channel import Channel, encode
from engine.config import EngineConfig
from engine.core.plan import Plan
from engine.errors import StartupError
from engine.parallel import SINGLE_RANK, TPGroup
from engine.worker.plan_deltas import PlanDelta, PlanReceiver, PlanSender

log = logging.getLogger("engine.parallel")

_MEET = timedelta(seconds=120)
"""How long ranks may wait for each other, at the start and in an all-reduce."""
_NOTICE = 2.0
"""Seconds within which the exit of a process is noticed."""
_LEAVE = 5.0
"""Seconds that the others get to exit by themselves."""


@dataclass(frozen=True, slots=True)
class Join:
    """The first message to a follower."""

    config: EngineConfig
    rank: int
    device: str
    store: Path
    """A file by which the ranks rendezvous."""


class LeaderRank(TPGroup):
    """Rank 0. Raises ``StartupError`` if not all ranks come."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(0, config.tensor_parallel)
        if device.type == "cuda" and torch.cuda.device_count() < self.size:
            raise StartupError(
                f"--tensor-parallel {self.size} needs as many GPUs; PyTorch finds {torch.cuda.device_count()}."
            )
        self.on_death: Callable[[int], None] = _leave
        """Called in a thread of its own with the rank of a process that has exited."""
        self._plans = PlanSender(config.block_size)
        self._closing = False
        self._gone = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        try:
            self._gather(config, device)
        except BaseException:
            # After any failure, an interrupt included, the others end, and this process can start again.
            self.close()
            raise

    def _gather(self, config: EngineConfig, device: torch.device) -> None:
        """Starts the others and forms the group."""
        # Rank 0 alone proposes draft tokens and loads the start's adapters; it sends the others the results.
        theirs = replace(config, speculation="off", draft_model=None, adapters=())
        theirs = replace(theirs, max_adapters=max(config.max_adapters, len(config.adapters)))
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "ranks"
            for rank in range(1, self.size):
                self._start(Join(theirs, rank, device.type, store))
            self._channels = [Channel(one) for one in self._sockets]
            # A rank that cannot import torch is detected before any waits for it.
            for rank in range(1, self.size):
                self._receive_from(rank)
            try:
                _meet(self.rank, self.size, device, store)
            except RuntimeError as error:
                raise StartupError(f"The ranks cannot connect to each other: {error}") from error

    def local_device(self, device: torch.device) -> torch.device:
        return _local_device(device, self.rank)

    def all_reduce_min(self, blocks: int) -> int:
        for rank in range(1, self.size):
            blocks = min(blocks, self._receive_from(rank))
        self._broadcast(blocks)
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()
        return blocks

    def send(self, message: object) -> None:
        self._broadcast(self._plans.delta(message) if isinstance(message, Plan) else message)

    def all_reduce(self, x: Tensor) -> Tensor:
        try:
            return super().all_reduce(x)
        except RuntimeError:
            # Gloo has noticed first; the watching thread knows which rank it was.
            self._gone.wait(_NOTICE)
            raise

    def close(self) -> None:
        self._closing = True
        for one in self._sockets:
            one.close()
        for process in self._processes:
            try:
                process.wait(_LEAVE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def pids(self) -> list[int]:
        """Of the other ranks, in their order."""
        return [process.pid for process in self._processes]

    def _start(self, join: Join) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "engine.worker.rank_process", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                )
            )
        self._sockets.append(ours)
        ours.sendall(encode(join))

    def _receive_from(self, rank: int) -> int:
        try:
            (reply,) = self._channels[rank - 1].receive(None)
        except EOFError:
            raise StartupError(f"Rank {rank} died while it loaded its part of the model.") from None
        if isinstance(reply, str):
            raise StartupError(reply)
        return int(reply)

    def _broadcast(self, message: object) -> None:
        data = encode(message)
        try:
            for one in self._sockets:
                one.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self._gone.wait(_NOTICE)
            raise

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        if process.wait() != 0 and not self._closing:
            self.on_death(rank)
            self._gone.set()


class FollowerRank(TPGroup):
    """Another rank. Raises ``EOFError`` when rank 0 has exited."""

    def __init__(self, join: Join, channel: Channel) -> None:
        super().__init__(join.rank, join.config.tensor_parallel)
        self._channel = channel
        self._plans = PlanReceiver()
        self._inbox: deque[object] = deque()
        channel.send(True)
        _meet(self.rank, self.size, torch.device(join.device), join.store)

    def local_device(self, device: torch.device) -> torch.device:
        return _local_device(device, self.rank)

    def all_reduce_min(self, blocks: int) -> int:
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


def start_ranks(config: EngineConfig, device: torch.device) -> TPGroup:
    """Rank 0's part. Starts the other processes, if there are to be any, or raises ``StartupError``."""
    return SINGLE_RANK if config.tensor_parallel == 1 else LeaderRank(config, device)


def _meet(rank: int, size: int, device: torch.device, store: Path) -> None:
    # All ranks are on this machine: whatever its name resolves to, they use the loopback interface.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.FileStore(str(store), size),
        rank=rank,
        world_size=size,
        timeout=_MEET,
        device_id=_local_device(device, rank) if on_gpu else None,
    )
    # NCCL connects at the first all-reduce: the file is needed until then.
    dist.all_reduce(torch.zeros(1, device=_local_device(device, rank)))


def _local_device(device: torch.device, rank: int) -> torch.device:
    return torch.device("cuda", rank) if device.type == "cuda" else device


def _leave(rank: int) -> None:
    log.critical("rank %d died: the rest of the model is of no use, so the engine process exits too", rank)
    # From a thread, while the main one may wait in a collective.
    os._exit(1)
