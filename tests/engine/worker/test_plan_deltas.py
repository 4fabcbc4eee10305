from __future__ import annotations

import pickle
from collections import Counter
from random import Random
from typing import Any

import pytest

from engine.core.plan import PENDING, Plan
from engine.worker.feed import FedPlan, Feed
from engine.worker.plan_deltas import PlanReceiver, PlanSender
from tests.engine.core.test_machine import ACTIONS, CHOICES, anything
from tests.engine.core.world import World


class Follower:
    """Another rank beside a world's device, which knows each plan by what it is told."""

    def __init__(self, world: World, tally: Counter[str]) -> None:
        self.world = world
        self.tally = tally
        self.sender = PlanSender(world.block_size)
        self.receiver = PlanReceiver()
        self.submit = world.device.submit
        world.device.submit = self.follow  # type: ignore[method-assign]

    def follow(self, plan: Plan, after: Any = None) -> Any:
        feed = None
        if after is not None:
            drawn = [one.request_id for one in after.plan.requests if one.sampling is not None]
            rows = {request_id: row for row, request_id in enumerate(drawn)}
            feed = Feed(rows, len(drawn), None, 2 + self.world.scheduler.max_drafts)
        delta = pickle.loads(pickle.dumps(self.sender.delta(plan, feed)))
        told = self.receiver.plan(delta)
        pending = {one.request_id for one in plan.requests if one.tokens[-1] == PENDING}
        if isinstance(told, FedPlan):
            assert feed is not None and told.feed.size == feed.size and told.feed.tokens is None
            assert told.feed.rows == {request_id: feed.rows[request_id] for request_id in pending}
            self.tally["fed"] += 1
            told = told.plan
        else:
            assert not pending
        size = self.world.block_size
        assert (told.copies, told.ended, told.altered) == (plan.copies, plan.ended, plan.altered)
        for mine, theirs in zip(plan.requests, told.requests, strict=True):
            assert (mine.request_id, mine.tokens, mine.start, mine.slack) == (
                theirs.request_id,
                theirs.tokens,
                theirs.start,
                theirs.slack,
            )
            assert mine.adapter == theirs.adapter and theirs.sampling is None
            end = -(-mine.end // size)
            tables = zip((mine.blocks, *mine.others), (theirs.blocks, *theirs.others), strict=True)
            for (own, other), window in zip(tables, self.world.windows, strict=True):
                first = 0 if window is None else max(0, mine.start - mine.slack + 1 - window) // size
                assert own[first:end] == other[first:end]
                self.tally["entries"] += end
        self.tally["told"] += sum(len(new) for _, tables in delta.tables.values() for new in tables)
        self.tally["altered"] += len(plan.altered)
        self.tally["planned"] += 1
        return self.submit(plan, after)


@pytest.mark.parametrize("steps", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_what_is_told_is_the_plan(steps: int) -> None:
    tally: Counter[str] = Counter()
    number = 0
    while tally["planned"] < steps:
        number += 1
        rng = Random(number)
        # With several ranks a step that runs out of memory ends them all.
        world = World(rng, tally, **anything(rng) | {"failing": False})
        Follower(world, tally)
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
        "fed",
        "slack",
        "parked",
    ):
        assert tally[name] >= steps / 1000, name
    assert tally["told"] < tally["entries"] / 2
