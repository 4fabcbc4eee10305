"""What ``float8.c`` and ``dense.c`` have in common: weights in tiles of outputs, which are multiplied as they are, or
laid out plain, some at a time, for a library's product."""

from __future__ import annotations

import ctypes
from functools import cache

from kernels.native.calls import Function
from kernels.native.library import load

COLUMNS = 512
"""Outputs laid out plain at a time."""


class Product(ctypes.Structure):
    """As in float8.c and dense.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "x", "into")),
        *((name, ctypes.c_int64) for name in ("stride", "rows")),
    )


class Plain(ctypes.Structure):
    """As in float8.c and dense.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "into")),
        *((name, ctypes.c_int64) for name in ("first", "last")),
    )


class TiledLibrary:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.product = Function(library.product)
        self.plain = Function(library.plain)
        self.width: int = library.width()
        """Outputs of a tile."""


@cache
def tiled_library(name: str) -> TiledLibrary | None:
    """Of ``name.c``; ``None`` if it is not available."""
    found = load(name, "product", "plain", "width")
    return None if found is None else TiledLibrary(found)
