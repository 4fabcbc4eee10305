"""Counts kernels that Triton compiles, or loads from disk, while serving: each stalls all requests.

A kernel is compiled for each combination of constants, dtypes and alignments of its arguments, so a shape that the
warm-up did not cover costs its first request seconds.
"""

from __future__ import annotations

import logging
from typing import Any

from kernels.launch import triton

log = logging.getLogger("kernels")


class Compilations:
    """Compilations in this process since ``start``."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    def start(self) -> None:
        """Does nothing without Triton. A hook that is set already is still called."""
        if triton is None:
            return
        runtime = triton.knobs.runtime
        self._before = runtime.jit_post_compile_hook
        runtime.jit_post_compile_hook = self._note

    def stop(self) -> None:
        if triton is not None and triton.knobs.runtime.jit_post_compile_hook == self._note:
            triton.knobs.runtime.jit_post_compile_hook = self._before

    def _note(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        log.warning("compiled while serving: %s", kwargs.get("repr", "a kernel"))
        return self._before(*args, **kwargs) if self._before is not None else None
