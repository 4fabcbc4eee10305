"""Host memory for copies of KV blocks: pinned where a GPU copies to it, else in a file that other processes can map."""

from __future__ import annotations

import fcntl
import mmap
import os

import torch
from torch import Tensor

_SEALS = 0x0001 | 0x0002 | 0x0004 | 0x0010
"""F_SEAL_SEAL, _SHRINK, _GROW and _FUTURE_WRITE of <linux/fcntl.h>: who gets the file can only read it, and nobody can
cut it off under those who have mapped it."""


def allocate(slots: int, block_bytes: int, *, pinned: bool, shared: bool) -> tuple[Tensor, int | None]:
    """uint8 [slots, bytes], and the file that has it, where it is to be ``shared`` and can be: memory that is pinned
    has none. Pages are taken as they are written to."""
    if pinned or not shared:
        return torch.empty(slots, block_bytes, dtype=torch.uint8, pin_memory=pinned), None
    file = os.memfd_create("tollgate-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size = slots * block_bytes
        os.ftruncate(file, size)
        mapped = mmap.mmap(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(file)
        raise
    return torch.frombuffer(mapped, dtype=torch.uint8).view(slots, block_bytes), file
