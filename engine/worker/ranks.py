"""How rank 0 gathers the other ranks of a model, and communicates with them.

It sends them its plans, and they execute the same; nothing comes back but the layers' sums and what stages hand on.
Only rank 0 samples tokens. When a rank dies all exit at once, as a part of a model is of no use.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.config import HEADS, EngineConfig
from engine.core.plan import Plan
from engine.errors import StartupError
from engine.nodes.address import Address
from engine.nodes.remote_rank import RemoteRank
from engine.parallel.meeting import MEET, meet
from engine.parallel.ranks import Ranks
from engine.worker.feed import Feed
from engine.worker.join import LOOPBACK, Join, join_part, layout_of, local_device
from engine.worker.local_rank import LocalRank
from engine.worker.nodes import reach
from engine.worker.plan_deltas import PlanSender
from engine.worker.pulse import PATIENCE

log = logging.getLogger("engine.parallel")

_NOTICE = 2.0
"""Seconds within which the exit of a process is noticed."""


class LeaderRank(Ranks):
    """Rank 0. Raises ``StartupError`` if not all ranks come."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(0, layout_of(config))
        here = self.size - len(config.nodes)
        if device.type == "cuda" and torch.cuda.device_count() < here:
            raise StartupError(
                f"{here} ranks on this machine (--tensor-parallel times --pipeline-parallel, less --nodes) need as "
                f"many GPUs; PyTorch finds {torch.cuda.device_count()}."
            )
        self.on_death: Callable[[int], None] = self._leave
        """Called in a thread of its own with the rank of a process that has exited."""
        self._plans = PlanSender(config.block_size)
        self._closing = False
        self._patience = PATIENCE
        self._gone = threading.Event()
        self._peers: list[LocalRank | RemoteRank] = []
        try:
            self._gather(config, device)
        except BaseException:
            # After any failure, an interrupt included, the others end, and this process can start again.
            self.close()
            raise

    def _gather(self, config: EngineConfig, device: torch.device) -> None:
        """Starts the others and forms the groups."""
        theirs = told(config)
        vocabulary = _vocabulary(config)
        self._peers += [LocalRank() for _ in range(1, self.size - len(config.nodes))]
        self._peers += reach(config)
        with tempfile.TemporaryDirectory() as folder:
            place, store, host = self._rendezvous(Path(folder) / "ranks")
            for rank, peer in enumerate(self._peers, 1):
                where = peer.far if isinstance(peer, RemoteRank) else host
                device_name = str(local_device(device, rank)) if isinstance(peer, LocalRank) else device.type
                peer.send(Join(theirs, rank, device_name, place, where, vocabulary))
            # A rank that cannot import torch is detected before any waits for it.
            for rank in range(1, self.size):
                self._receive_from(rank)
            try:
                mine = self.local_device(device)
                if mine.index is not None:
                    torch.cuda.set_device(mine)
                tensor, self.pipe = meet(self.layout, 0, store, mine, host, self._lost)
                for rank in range(1, self.size):
                    self._receive_from(rank)
            except RuntimeError as error:
                raise StartupError(f"The ranks cannot connect to each other: {error}") from error
        self.part = join_part(config, 0, tensor, vocabulary=vocabulary)

    def _rendezvous(self, path: Path) -> tuple[Path | Address, Any, str]:
        """Where the ranks find each other: as they are told, as this one has it, and this host's address."""
        host = next((peer.near for peer in self._peers if isinstance(peer, RemoteRank)), None)
        if host is None:
            return path, dist.FileStore(str(path), self.size), LOOPBACK
        # The port is on that address alone.
        server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        place = Address(host, server.getsockname()[1])
        store = dist.TCPStore(
            *(*place, self.size, True),
            timeout=MEET,
            wait_for_workers=False,
            master_listen_fd=server.detach(),
        )
        return place, store, host

    def local_device(self, device: torch.device) -> torch.device:
        return local_device(device, self.rank)

    def all_reduce_min(self, blocks: int) -> int:
        for rank in range(1, self.size):
            blocks = min(blocks, self._receive_from(rank))
        self._broadcast(blocks)
        for rank, peer in enumerate(self._peers, 1):
            threading.Thread(target=self._watch, args=(rank, peer), daemon=True).start()
        return blocks

    def send(self, message: object) -> None:
        self._broadcast(message)

    def send_plan(self, plan: Plan, feed: Feed | None = None) -> None:
        self._broadcast(self._plans.delta(plan, feed))

    def send_stage(self, message: object) -> None:
        self._broadcast(message, self.layout.tensor)

    def close(self) -> None:
        self._closing = True
        for peer in self._peers:
            peer.stop()
        for peer in self._peers:
            peer.close()

    @property
    def pids(self) -> list[int]:
        """Of the other ranks on this machine, in their order."""
        return [peer.pid for peer in self._peers if isinstance(peer, LocalRank)]

    def _receive_from(self, rank: int) -> int:
        peer = self._peers[rank - 1]
        try:
            reply = peer.receive(self._patience)
        except EOFError:
            raise StartupError(
                f"Rank {rank}{peer.where} died while it loaded its part of the model."
            ) from None
        except TimeoutError:
            raise StartupError(
                f"Rank {rank}{peer.where} gave no sign of life for {self._patience:.0f} s while it loaded its part of "
                "the model: it is stopped, or its disk does not answer. Look at it, and start the engine again."
            ) from None
        if isinstance(reply, str):
            raise StartupError(reply)
        return int(reply)

    def _broadcast(self, message: object, ranks: int | None = None) -> None:
        """To the first of the ``ranks``."""
        payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            for peer in self._peers[: None if ranks is None else ranks - 1]:
                peer.send_payload(payload)
        except EOFError:
            self._lost()
            raise

    def _lost(self) -> None:
        # An operation has noticed first; the watching thread knows which rank it was.
        self._gone.wait(_NOTICE)

    def _watch(self, rank: int, peer: LocalRank | RemoteRank) -> None:
        if peer.wait() and not self._closing:
            self.on_death(rank)
            self._gone.set()

    def _leave(self, rank: int) -> None:
        log.critical(
            "rank %d%s died: the rest of the model is of no use, so the engine process exits too",
            rank,
            self._peers[rank - 1].where,
        )
        # From a thread, while the main one may wait in a collective.
        os._exit(1)


def start_ranks(config: EngineConfig, device: torch.device) -> Ranks:
    """Rank 0's part. Starts the other processes, if there are to be any, or raises ``StartupError``."""
    return Ranks() if config.ranks == 1 else LeaderRank(config, device)


def told(config: EngineConfig) -> EngineConfig:
    """As the other ranks have it. Rank 0 alone proposes draft tokens and loads the start's adapters; it sends the
    others the results."""
    return replace(config, draft_model=None, draft_quantization=None, adapters=(), max_adapters=config.slots)


def _vocabulary(config: EngineConfig) -> bool:
    """Whether the embedding and the head are shared. Heads that draft tokens on rank 0 alone use both."""
    return config.speculation not in HEADS
