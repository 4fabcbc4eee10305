"""A limit on the characters of a request's texts together, or of an answer."""

from __future__ import annotations

from gateway.guards.finding import Finding
from gateway.policy.schema.guards import LengthGuard


class Length:
    """Counts, and so needs no text. Whoever has the texts adds their lengths up."""

    def __init__(self, config: LengthGuard) -> None:
        self.max_characters = config.max_characters

    def exceeds(self, count: int) -> Finding | None:
        """What is beyond the limit, where ``count`` characters are."""
        return Finding("length", self.max_characters, count) if count > self.max_characters else None
