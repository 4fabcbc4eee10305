"""A bar for work that takes long, on terminals alone."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from time import monotonic
from typing import TextIO

EVERY = 0.1
"""Seconds between two drawings."""
_BAR = 24


class Progress:
    """One line, drawn over and over, and wiped at the end."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._shown = self._out.isatty()
        self._next = 0.0

    def show(self, share: float | None, text: str) -> None:
        """``share`` of the work is done; None where nobody knows."""
        if not self._shown or (now := monotonic()) < self._next:
            return
        self._next = now + EVERY
        bar = ""
        if share is not None:
            done = round(_BAR * min(1.0, max(0.0, share)))
            bar = f"[{'#' * done}{'.' * (_BAR - done)}] "
        width = get_terminal_size().columns - 1
        self._write(f"\r{bar}{text}"[:width].ljust(width))

    def wipe(self) -> None:
        if self._shown:
            self._write("\r" + " " * (get_terminal_size().columns - 1) + "\r")
            self._next = 0.0

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
