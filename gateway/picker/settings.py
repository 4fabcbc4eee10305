"""What the command line says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PickerSettings:
    backend: str | None = None
    """Whose replicas are picked; the policy's only one that has any, where none is named."""
    patience: float = 1.0
    """Seconds that a request may wait for a place: less than the gateway waits for an answer (``message_timeout``)."""
    fallbacks: int = 0
    """Endpoints that are named beside the one that was picked, for a gateway that tries again."""
    max_body: int = 32 * 2**20
    """Bytes."""
