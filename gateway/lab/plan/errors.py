"""What stops a plan, told to whoever asked for it."""

from __future__ import annotations


class PlanError(Exception):
    """Something that was given cannot be planned with; the message says what to do."""
