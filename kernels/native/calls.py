"""Calls of functions in C: each takes a job, which is a struct, and the number of threads.

While a ``Listener`` listens it is told of each call, so that all can be made again without Python between them: see
recording.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor


class Listener(Protocol):
    def called(self, function: Function, job: ctypes.Structure) -> None: ...

    def looked_up(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor: ...


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Function:
    """``int function(const Job *job, int threads)`` of a library, which returns 0, or else had no memory."""

    def __init__(self, function: Any) -> None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_int)
        function.restype = ctypes.c_int
        self._function = function

    @property
    def address(self) -> int:
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def __call__(self, job: ctypes.Structure) -> None:
        if self._function(ctypes.addressof(job), torch.get_num_threads()):
            raise MemoryError(f"kernels/native: no memory for {self._function.__name__}")
        if (listener := _listener.get()) is not None:
            listener.called(self, job)


def look_up(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function(x)``, whose Python reads the numbers in ``x``, and is to run in each replay, too."""
    listener = _listener.get()
    return function(x) if listener is None else listener.looked_up(function, x)
