"""A limit on the characters of a request's texts together, or of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.findings import Finding
from gateway.guards.scanners.scanner import Origin, Verdict
from gateway.policy.schema.guards import LengthGuard
from gateway.types import Call


class Length:
    """The caller sums up lengths and calls ``exceeds``; as a ``Scanner`` it scans nothing."""

    origins: frozenset[Origin] = frozenset()
    longest = 0

    def __init__(self, config: LengthGuard) -> None:
        self.max_characters = config.max_characters

    def exceeds(self, count: int) -> Finding | None:
        """What is beyond the limit in ``count`` characters."""
        return Finding("length", self.max_characters, count) if count > self.max_characters else None

    def quick(self, text: str, origin: Origin) -> Verdict:
        return Verdict()

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return [Verdict() for _ in texts]
