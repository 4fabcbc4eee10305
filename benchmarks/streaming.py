"""How fast this machine reads memory from end to end, with torch's threads: what decoding at batch 1 is bound by."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from kernels.native.calls import Function
from kernels.native.library import load


class _Job(ctypes.Structure):
    """As in streaming.c."""

    _fields_ = (("start", ctypes.c_void_p), ("pages", ctypes.c_int64), ("sum", ctypes.c_uint64))


class Stream:
    """More than caches hold, read by each call. Raises ``RuntimeError`` without a C compiler."""

    def __init__(self, nbytes: int = 256 * 2**20) -> None:
        library = load("streaming", "stream", folder=Path(__file__).parent)
        if library is None:
            raise RuntimeError("Reading memory is timed in C: install a C compiler.")
        self._function = Function(library.stream)
        self.nbytes = nbytes
        self._memory = mmap.mmap(-1, nbytes + 8192)  # what is fetched ahead of the end
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        ctypes.memset(address, 1, len(self._memory))
        self._job = _Job(address, nbytes // 4096)

    def __call__(self) -> None:
        self._function(self._job)
