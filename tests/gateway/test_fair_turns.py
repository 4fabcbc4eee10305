"""Scans of many long texts leave the event loop to others, and callers take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.fair_turns import FairTurns
from gateway.guards.guards import Guard
from gateway.guards.scanners.pieces import PIECE
from gateway.guards.scanners.scanner import Origin, Verdict
from gateway.guards.scans.batch_scan import BatchScan
from gateway.guards.scans.inspection import Inspection
from gateway.observe.metrics import Metrics
from gateway.policy.schema import InjectionGuard
from gateway.types import Call, Principal
from tests.fakes import a_call

pytestmark = pytest.mark.anyio


class Scanner:
    """Writes down whose piece was scanned in which round of the loop."""

    longest = 0
    origins: frozenset[Origin] = frozenset({"user"})

    def __init__(self) -> None:
        self.scanned: list[tuple[str, int]] = []
        self.round = 0

    def quick(self, text: str, origin: Origin) -> Verdict:
        self.scanned.append((text[0], self.round))
        return Verdict(())

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        raise NotImplementedError

    async def count_rounds(self) -> None:
        while True:
            self.round += 1
            await asyncio.sleep(0)


async def test_one_piece_a_round_and_one_caller_after_the_other() -> None:
    scanner = Scanner()
    guard = Guard("injection", InjectionGuard(kind="injection"), scanner)

    async def scan(text: str, tenant: str) -> None:
        call = a_call(principal=Principal("k", tenant))
        await BatchScan(Inspection(guard, "input", Metrics(), call), [(text, "user")]).look()

    counting = asyncio.create_task(scanner.count_rounds())
    many = [asyncio.create_task(scan("m" * 5 * PIECE, "mallory")) for _ in range(20)]
    await asyncio.sleep(0)
    await scan("a" * 5 * PIECE, "alice")
    mallorys = [whose for whose, _ in scanner.scanned].count("m")
    assert mallorys < 50, "alice has every second turn, whatever the others have"
    await asyncio.gather(*many)
    counting.cancel()
    rounds = [number for _, number in scanner.scanned]
    assert len(rounds) > 100
    assert len(set(rounds)) > 0.8 * len(rounds), "others come between any two pieces"


async def test_a_turn_of_somebody_who_has_left_goes_to_the_next() -> None:
    turns = FairTurns()
    await turns.take("a")
    waiting = [asyncio.create_task(turns.take(owner)) for owner in "aab"]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    async with asyncio.timeout(10):
        await waiting[2]
        for _ in range(3):
            await turns.take("a")
