"""Scanners for tests: they look for given words, in the fast tier or in a slower one under the test's control."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.findings import Finding
from gateway.guards.guards import Guards
from gateway.guards.scanners.scanner import ORIGINS, Origin, Scanner, Unscanned, Verdict
from gateway.guards.scans.background import BackgroundScans
from gateway.observe.metrics import Metrics
from gateway.types import Call
from tests.fakes import policy

ALL: frozenset[Origin] = frozenset(ORIGINS)


class KeywordScanner:
    """Finds words anywhere, at once."""

    def __init__(self, words: Mapping[str, str], *, origins: frozenset[Origin] = ALL) -> None:
        """``words`` has a label for each."""
        self.origins = origins
        self.longest = max(map(len, words))
        self.seen: list[tuple[str, Origin]] = []
        self._words = words
        self._pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))

    def find(self, text: str) -> tuple[Finding, ...]:
        return tuple(
            Finding(self._words[match[0]], match.start(), match.end(), 0.9)
            for match in self._pattern.finditer(text)
        )

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        self.seen.append((text, origin))
        found = self.find(text)
        return Verdict(found, 0.9 if found else 0.0)

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        raise AssertionError("nothing was left open")


class BlockScanner(KeywordScanner):
    """Finds all from ``BEGIN`` to ``END``, or to the end of the text; it is only sure to find where they begin."""

    def __init__(self) -> None:
        super().__init__({"BEGIN": "block"})

    def find(self, text: str) -> tuple[Finding, ...]:
        return tuple(
            Finding("block", *match.span()) for match in re.finditer(r"(?s)BEGIN.*?(?:END|\Z)", text)
        )


class SlowScanner(KeywordScanner):
    """Leaves everything to its slower tier, which waits for ``gate``, and fails with ``failure``."""

    def __init__(self, words: Mapping[str, str], *, failure: Exception | None = None) -> None:
        super().__init__(words)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure = failure
        self.asked: list[list[str]] = []
        self.running = 0
        self.cancelled = 0

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        return None

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        self.asked.append(list(texts))
        self.running += 1
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if self.failure is not None:
            raise self.failure
        return [Verdict(self.find(text), 0.9, "model") for text in texts]


def unavailable() -> Unscanned:
    return Unscanned("the sidecar is away")


def guards_of(**guards: tuple[Scanner, dict[str, Any]]) -> Guards:
    """Guards with scanners of one's own; each is written down as a secrets guard, as that may do everything."""
    rules = policy(guards={name: {"kind": "secrets", **config} for name, (_, config) in guards.items()})
    return Guards(rules, {name: scanner for name, (scanner, _) in guards.items()})


def background_scans_of(metrics: Metrics | None = None) -> BackgroundScans:
    """For stages under test; no receipt is written anywhere."""
    return BackgroundScans(metrics or Metrics(), lambda tenant, receipt: None)
