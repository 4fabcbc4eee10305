"""What a replay refuses."""

from __future__ import annotations


class ReplayError(Exception):
    """The message says what to do."""
