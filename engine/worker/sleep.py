"""Memory that a sleeping model gives back to the machine, and has again when it wakes. On a CPU.

Weights that are mapped from the weight cache (``engine/weights/cache_file.py``) are dropped from the process and stay
in the kernel's page cache, which counts as free; should the kernel need it, they are read from the file again. KV
blocks have nothing to keep once no prefix refers to them. What is neither, such as weights that were not converted,
stays.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from engine.kv_cache import KVCache
from engine.weights.cache_file import SUFFIX

_POPULATE_READ = 22
"""``MADV_POPULATE_READ``, since Linux 5.14."""
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)$")


def give_back(cache: KVCache) -> None:
    """No request is open, and nothing refers to the cache's blocks."""
    for start, size in _weights():
        _advise(start, size, mmap.MADV_DONTNEED)
    for layer in cache.layers:
        for tensor in layer.tensors:
            _empty(tensor)


def take_back() -> None:
    """Weights are mapped again at once, not one page after the other in the first step."""
    for start, size in _weights():
        _advise(start, size, _POPULATE_READ)


def _empty(tensor: Tensor) -> None:
    """Its whole pages are zeros again, and take no memory until they are written."""
    page, start = mmap.PAGESIZE, tensor.data_ptr()
    first = -(-start // page) * page
    last = (start + tensor.numel() * tensor.element_size()) // page * page
    if tensor.is_contiguous() and last > first:
        _advise(first, last - first, mmap.MADV_DONTNEED)


def _weights() -> Iterator[tuple[int, int]]:
    """(address, bytes) of mappings of weight caches of which no page was written to: one that was would be lost."""
    found: tuple[int, int] | None = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := _MAPPING.match(line):
            start, end, path = int(match[1], 16), int(match[2], 16), match[3]
            found = (start, end - start) if SUFFIX in path else None
        elif found is not None and line.startswith("Anonymous:") and line.split()[1] == "0":
            yield found


def _advise(start: int, size: int, advice: int) -> None:
    """An older kernel may not know it: then memory is given back, or read, later."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    madvise(start, size, advice)
