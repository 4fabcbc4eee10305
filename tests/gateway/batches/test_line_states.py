"""Whatever owners do and whenever they die, each line gets one result, and the sums are those of the results."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.batches.batch import Batch, Creator, Sums
from gateway.batches.batch_table import BATCHES, BatchTable, LeaseLost
from gateway.batches.line import Line, LineResult
from gateway.batches.line_queue import LineQueue
from gateway.databases.sqlite import SqliteDatabase
from tests.examples import examples

LINES = 7
LEASE = 1000.0


@dataclass
class Owner:
    """A process that runs the batch, or thinks that it does."""

    name: str
    queue: LineQueue = field(default_factory=LineQueue)
    answered: list[LineResult] = field(default_factory=list)
    """Not written yet."""
    owns: bool = True


class Owners(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = SqliteDatabase(Path(self.folder.name) / "batches.sqlite", BATCHES.scripts)
        self.table = BatchTable(self.database)
        self.owners: list[Owner] = []
        self.runs: Counter[int] = Counter()
        self.kept: dict[int, LineResult] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize()
    def a_batch(self) -> None:
        creator = Creator("key", "acme", "default", ("*",))
        self.batch = Batch("batch_1", creator, "/v1/chat/completions", "file-1", 1, 2)
        self.table.create(self.batch)
        self.takes_over()
        lines = [Line(n, f"line {n}", "m", "ab"[n % 2], "{}") for n in range(1, LINES + 1)]
        owner = self.owners[0]
        self.table.add_lines(owner.name, self.batch.id, lines[:4])
        self.table.add_lines(owner.name, self.batch.id, lines)  # as after a crash
        self.table.begin(owner.name, self.batch.id, LINES, "m", 1)

    @rule()
    def takes_over(self) -> None:
        """The lease of whoever owned it is over; they do not know that yet."""
        with self.database.changing() as change:
            change.run("UPDATE batches SET lease = 0", {})
        for owner in self.owners:
            owner.owns = False
        owner = Owner(f"owner {len(self.owners)}")
        claimed = self.table.claim(owner.name, LEASE, 1, ())
        assert [one.id for one in claimed] == [self.batch.id]
        self.owners.append(owner)

    @rule(which=st.integers(0, 3), limit=st.integers(1, 4))
    def reads(self, which: int, limit: int) -> None:
        owner = self._owner(which)
        lines = self.table.pending(self.batch.id, "m", owner.queue.last, limit)
        known = {line.number for line in owner.queue.running.values()}
        assert known.isdisjoint(line.number for line in lines)
        owner.queue.add(lines)

    @rule(which=st.integers(0, 3), now=st.floats(0, 10))
    def starts(self, which: int, now: float) -> None:
        line = self._owner(which).queue.take(now)
        if line is not None:
            self.runs[line.number] += 1

    @rule(which=st.integers(0, 3), good=st.booleans())
    def answers(self, which: int, good: bool) -> None:
        owner = self._owner(which)
        if owner.queue.running:
            number = next(iter(owner.queue.running))
            owner.queue.done(number)
            sums = Sums(completed=1, prompt_tokens=number) if good else Sums(failed=1)
            owner.answered.append(LineResult(number, f"{number} by {owner.name}", sums))

    @rule(which=st.integers(0, 3), at=st.floats(0, 10))
    def gives_back(self, which: int, at: float) -> None:
        owner = self._owner(which)
        if owner.queue.running:
            owner.queue.give_back(next(iter(owner.queue.running)), at)

    @rule(which=st.integers(0, 3), again=st.booleans())
    def writes(self, which: int, again: bool) -> None:
        """``again``: nobody knew that it had arrived."""
        owner = self._owner(which)
        if not owner.answered:
            return
        try:
            for _ in range(1 + again):
                self.table.settle(owner.name, self.batch.id, owner.answered)
        except LeaseLost:
            assert not owner.owns
            return
        assert owner.owns
        for one in owner.answered:
            self.kept.setdefault(one.number, one)
        owner.answered.clear()

    @precondition(lambda self: self.owners)
    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        found = self.table.find("acme", self.batch.id)
        assert found is not None
        assert found.sums == sum((one.sums for one in self.kept.values()), Sums())
        ended = self.table.lines(self.batch.id, ["completed", "failed"], 0)
        assert {one.line.number: one.result for one in ended} == {
            number: one.written for number, one in self.kept.items()
        }
        pending = self.table.lines(self.batch.id, ["pending"], 0)
        assert {one.line.number for one in pending} == set(range(1, LINES + 1)) - self.kept.keys()
        assert self.table.models(self.batch.id) == ({"m": len(pending)} if pending else {})

    @precondition(lambda self: self.owners)
    @invariant()
    def each_owner_knows_where_each_of_its_lines_is(self) -> None:
        for owner in self.owners:
            assert len(owner.queue) == owner.queue.waiting + len(owner.queue.running)

    def _owner(self, which: int) -> Owner:
        """One of the latest."""
        return self.owners[-1 - which % len(self.owners)]


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=examples(40), stateful_step_count=25)
