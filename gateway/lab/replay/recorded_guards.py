"""Guards that find what was found when the traffic was recorded: a mark stands in the text for it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.findings import Finding
from gateway.guards.scanners.factory import build_scanner
from gateway.guards.scanners.scanner import ORIGINS, Origin, Scanner, Verdict
from gateway.lab.replay.prompts import mark
from gateway.policy.schema import LengthGuard, Policy
from gateway.sidecar.client import NoSidecar
from gateway.types import Call

_CLEAN = Verdict()


class RecordedScanner:
    """The ``Scanner`` of one guard."""

    origins: frozenset[Origin] = frozenset(ORIGINS)

    def __init__(self, guard: str) -> None:
        self._mark = mark(guard)
        self.longest = len(self._mark)

    def quick(self, text: str, origin: Origin) -> Verdict:
        at = text.find(self._mark)
        if at < 0:
            return _CLEAN
        return Verdict((Finding("recorded", at, at + len(self._mark)),), 1.0)

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return [self.quick(text, origin) for text in texts]


def recorded_scanners(policy: Policy) -> dict[str, Scanner]:
    """Of all guards but those of lengths, which count: texts are as long as they were."""
    return {
        name: build_scanner(guard, NoSidecar(), None)
        if isinstance(guard, LengthGuard)
        else RecordedScanner(name)
        for name, guard in policy.guards.items()
    }
