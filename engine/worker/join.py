"""What a rank is told first, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.config import EngineConfig
from engine.nodes.address import Address
from engine.parallel.collectives import Collectives
from engine.parallel.group import TPGroup
from engine.parallel.layout import Layout, Stage
from engine.parallel.meeting import MEET
from engine.parallel.part import Part

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Join:
    """The first message to a follower."""

    config: EngineConfig
    rank: int
    device: str
    """``cpu``, or ``cuda`` with this rank's number on its host; on other hosts they choose it."""
    store: Path | Address
    """A file, or a port of rank 0's host, by which the ranks rendezvous."""
    host: str
    """This rank's host, as the others know it."""
    vocabulary: bool
    """As ``Part`` has it."""


def layout_of(config: EngineConfig) -> Layout:
    return Layout(config.tensor_parallel, config.pipeline_parallel)


def join_part(config: EngineConfig, rank: int, tensor: Collectives | None, *, vocabulary: bool) -> Part:
    """A rank's part of the model. ``tensor``: of its stage's ranks."""
    layout = layout_of(config)
    return Part(
        TPGroup(layout.shard(rank), layout.tensor, tensor),
        Stage(layout.stage(rank), layout.pipeline),
        experts=config.expert_parallel > 1,
        vocabulary=vocabulary,
    )


def local_device(device: torch.device, rank: int) -> torch.device:
    return torch.device("cuda", rank) if device.type == "cuda" else device


def open_store(store: Path | Address, size: int) -> Any:
    """Another rank's end of the rendezvous."""
    if isinstance(store, Path):
        return dist.FileStore(str(store), size)
    return dist.TCPStore(store.host, store.port, size, False, timeout=MEET, wait_for_workers=False)
