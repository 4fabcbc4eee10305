"""Progress of loading weights, or of fetching them: a bar on a terminal, log lines otherwise."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

log = logging.getLogger("engine.weights")

_EVERY = 5.0
"""Seconds between log lines."""


class Progress:
    """Called with the number of bytes read."""

    def __init__(self, total: int, bar: tqdm, what: str) -> None:
        self._total = total
        self._what = what
        self._bar = bar
        self._read = 0
        self._last_logged = time.monotonic()

    def __call__(self, count: int) -> None:
        self._read += count
        self._bar.update(count)
        if self._bar.disable and time.monotonic() - self._last_logged > _EVERY:
            self._last_logged = time.monotonic()
            log.info("%s: %.0f %% of %.1f GB", self._what, 100 * self._read / self._total, self._total / 1e9)


@contextmanager
def progress(total: int, what: str = "loading weights") -> Iterator[Progress]:
    """``total``: bytes to be read."""
    # disable=None: no bar unless stderr is a terminal.
    with tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=None, file=sys.stderr) as bar:
        yield Progress(max(1, total), bar, what)
