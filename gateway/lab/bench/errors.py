"""What ends a benchmark before it has a report."""

from __future__ import annotations


class BenchError(Exception):
    """The message tells what to do."""


class OptionError(BenchError):
    """An option, or a file that one names, cannot be used."""
