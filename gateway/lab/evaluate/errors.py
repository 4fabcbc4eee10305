"""What ends an evaluation before it has a report."""

from __future__ import annotations


class EvaluationError(Exception):
    """The message tells what to do."""


class SetError(EvaluationError):
    """The set, or an option, cannot be used."""
