from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from engine.core.plan import Plan, ScheduledRequest
from engine.errors import OutOfMemory
from engine.worker.block_table import BlockTable
from tests.engine.core.test_machine import ACTIONS, CHOICES, anything
from tests.engine.core.world import World

CPU = torch.device("cpu")
PADDING = 10_000


def built_anew(
    plan: Plan, windows: tuple[int | None, ...], size: int, width: int, group: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    tables = np.full((len(plan.requests), width), PADDING, dtype=np.int64)
    window = windows[group]
    for row, scheduled in enumerate(plan.requests):
        table = scheduled.others[group - 1] if group else scheduled.blocks
        first = 0 if window is None else max(0, scheduled.start - scheduled.slack + 1 - window) // size
        end = -(-scheduled.end // size)
        tables[row, first:end] = table[first:end]
    return tables


class Kept:
    """A table beside a world's device: after each step it has what one that is built anew would have."""

    def __init__(self, world: World, tally: Counter[str], *, mirrored: bool) -> None:
        self.world = world
        self.tally = tally
        self.table = BlockTable(world.windows, world.block_size, PADDING, CPU, mirrored=mirrored)
        self.submit = world.device.submit
        world.device.submit = self.follow  # type: ignore[method-assign]

    def follow(self, plan: Plan, after: Any = None) -> Any:
        rng, size, windows = self.world.rng, self.world.block_size, self.world.windows
        if rng.random() < 0.02:
            # Before the table knows of it.
            self.fail(plan, after)
        self.table.forget(plan.ended)
        plan.requests.sort(key=lambda scheduled: scheduled.request_id % 7)
        width = max(-(-scheduled.end // size) for scheduled in plan.requests) + rng.choice((0, 3))
        rows = self.table.update(plan.requests, width, plan.altered)
        if rng.random() < 0.02:
            # The device lacks what the host has written.
            self.fail(plan, after)
        changes = self.table.changes()
        self.table.apply([torch.from_numpy(array) for array in changes])
        for group in range(len(windows)):
            wanted = built_anew(plan, windows, size, width, group)
            found = self.table.select(group, torch.from_numpy(rows), width)
            assert found.numpy().tolist() == wanted.tolist()
            columns = np.array([scheduled.start // size for scheduled in plan.requests])
            assert (self.table.lookup(group, rows, columns) == wanted[np.arange(len(rows)), columns]).all()
        self.tally["altered"] += len(plan.altered)
        self.tally["planned"] += 1
        return self.submit(plan, after)

    def fail(self, plan: Plan, after: Any) -> NoReturn:
        """It runs out of memory: blocks were copied, and whatever else it did does not count."""
        self.table.clear()
        flight = self.submit(plan, after)
        self.world.device.flights.remove(flight)
        flight.orphan = True
        raise OutOfMemory("")


@pytest.mark.parametrize("steps", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mirrored", [False, True], ids=["host", "mirrored"])
def test_a_table_that_is_kept_is_as_one_built_anew(mirrored: bool, steps: int) -> None:
    tally: Counter[str] = Counter()
    number = 0
    while tally["planned"] < steps:
        number += 1
        rng = Random(number)
        world = World(rng, tally, **anything(rng))
        Kept(world, tally, mirrored=mirrored)
        for _ in range(250):
            ACTIONS[rng.choice(CHOICES)](world)
            world.check()
    for name in (
        "altered",
        "preempted",
        "hits",
        "copies",
        "behind",
        "drafts right",
        "ahead",
        "slack",
        "parked",
    ):
        assert tally[name] >= steps / 1000, name


def scheduled(number: int, start: int, blocks: list[int], count: int = 1) -> ScheduledRequest:
    return ScheduledRequest(number, [0] * count, start, blocks, None, True)


def test_a_step_writes_only_what_is_new() -> None:
    table = BlockTable((None,), 16, PADDING, CPU, mirrored=True)
    requests = {number: list(range(500 * number, 500 * number + 500)) for number in range(40)}

    def step(start: int, altered: dict[int, int] | None = None) -> int:
        plan = [scheduled(number, start, blocks) for number, blocks in requests.items()]
        table.update(plan, 500, altered or {})
        changes = table.changes()
        table.apply([torch.from_numpy(array) for array in changes])
        return len(changes[1])

    step(7000)
    assert [step(start) for start in range(7001, 7008)] == [0] * 7
    assert step(7008) == 40
    requests[3][2] = 77
    assert step(7009, {3: 2}) == 439 - 2
    # Another list is another table.
    requests[5] = list(requests[5])
    assert step(7010) == 439
