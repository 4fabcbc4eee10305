"""Memory that was freed, back to the system."""

from __future__ import annotations

import ctypes


def return_freed() -> None:
    """glibc keeps pieces of up to 32 MiB (see ``engine.begun_process``), such as layers while they are converted."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
