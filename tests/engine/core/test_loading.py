"""Requests that wait for blocks from host memory or disk: who, how long, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.tiers.copier import Copied
from engine.core.tiers.tier import Tier
from engine.core.tiers.tiered_cache import TierSet
from tests.engine.core.test_scheduler import Clock, make, request, shape, step


class Copies:
    """A copier that does nothing, and only when it is told to: ``land``."""

    block_bytes = 1000

    def __init__(self) -> None:
        self.load_bandwidth = self.read_bandwidth = 0.0
        self.saved: list[tuple[int, int]] = []
        self.loaded: list[list[tuple[int, int]]] = []
        self.under_way: list[Copied] = []
        self.done: list[Copied] = []

    def save(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.saved += pairs

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.loaded.append(list(pairs))

    def write(self, key: bytes, slot: int, place: int, depth: int) -> None:
        self.under_way.append(Copied(key, slot, place, read=False))

    def read(self, key: bytes, place: int, slot: int) -> None:
        self.under_way.append(Copied(key, slot, place, read=True))

    def land(self, good: bool = True) -> None:
        self.done += [Copied(one.key, one.slot, one.place, one.read, good) for one in self.under_way]
        self.under_way = []

    def copied(self) -> list[Copied]:
        done, self.done = self.done, []
        return done

    def wait(self, seconds: float) -> None:
        """Nothing comes by itself."""

    def close(self) -> None:
        """There is nothing to end."""


def tiered(*, host: int = 50, disk: int = 0, blocks: int = 12, **options: object) -> tuple[Scheduler, Copies]:
    copies = Copies()
    tiers = TierSet(Tier(host), Tier(disk) if disk else None, copies)
    return make(blocks=blocks, budget=64, prefix_caching=True, tiers=tiers, **options), copies


def other(number: int, prompt: int = 48, **options: int) -> Request:
    """It has nothing in common with others, and leaves no room on twelve blocks."""
    tokens = [500 + 50 * number + place for place in range(prompt)]
    return Request(number, tokens, SamplingParams(max_tokens=1), **options)


def finish(scheduler: Scheduler, copies: Copies | None = None) -> None:
    for _ in range(100):
        if copies is not None:
            copies.land()
        if scheduler.idle:
            return
        step(scheduler)
        scheduler.check_integrity()
    raise AssertionError("requests hang")


def evicted(scheduler: Scheduler, copies: Copies) -> None:
    """40 tokens of request 1 were computed, and are not on the device any more."""
    scheduler.submit(request(1, 41, generate=1))
    finish(scheduler)
    scheduler.submit(other(2))
    finish(scheduler)
    copies.saved.clear()


def on_disk(**options: object) -> tuple[Scheduler, Copies]:
    """40 tokens of request 1 were computed, and are on disk alone."""
    scheduler, copies = tiered(host=12, disk=50, **options)
    for one in (request(1, 41, generate=1), other(2)):
        scheduler.submit(one)
        while not scheduler.idle or scheduler.copying:
            step(scheduler)
            copies.land()
    assert scheduler.tiers and scheduler.tiers.state.disk == 22
    return scheduler, copies


def test_blocks_are_copied_when_they_are_computed_and_come_back_when_they_were_evicted() -> None:
    scheduler, copies = tiered()
    scheduler.submit(request(1, 41, generate=1))
    finish(scheduler)
    assert len(copies.saved) == 10
    scheduler.submit(other(2))
    finish(scheduler)
    assert len(copies.saved) == 22
    scheduler.submit(request(3, 42, generate=1))
    plan, _ = step(scheduler)
    # All in the step that computes what is left.
    assert shape(plan) == [(3, 40, 2)] and plan.hit_tokens == 40 and plan.prefix_hits == 40
    (loaded,) = copies.loaded
    assert [slot for slot, _ in loaded] == [slot for _, slot in copies.saved[:10]]
    finish(scheduler)
    # What is known is not copied again.
    assert len(copies.saved) == 22
    state = scheduler.tiers and scheduler.tiers.state
    assert state and (state.saved, state.loaded, state.host) == (22, 10, 22)


def test_what_comes_too_slowly_is_computed_and_now_and_then_it_is_measured_again() -> None:
    scheduler, copies = tiered()
    evicted(scheduler, copies)
    scheduler.latency.observe(1.0, prefill_tokens=1000, decode_tokens=0)
    copies.load_bandwidth = 1000.0
    for number in range(3, 18):
        scheduler.submit(request(number, 42, generate=1))
        assert shape(step(scheduler)[0]) == [(number, 0, 42)]
        scheduler.submit(other(number))
        finish(scheduler)
    assert not copies.loaded
    scheduler.submit(request(20, 42, generate=1))
    assert shape(step(scheduler)[0]) == [(20, 40, 2)]


def test_while_one_waits_for_the_disk_others_go_on() -> None:
    scheduler, copies = on_disk()
    scheduler.submit(request(3, 42, generate=1))
    scheduler.submit(other(4, 8))
    plan, _ = step(scheduler)
    assert shape(plan) == [(4, 0, 8)] and [one.id for one in scheduler.queues.loading] == [3]
    assert not scheduler.idle and scheduler.num_waiting == 1
    assert shape(step(scheduler)[0]) == []
    scheduler.check_integrity()
    copies.land()
    assert shape(step(scheduler)[0]) == [(3, 40, 2)]
    finish(scheduler, copies)


def test_what_cannot_be_read_is_computed() -> None:
    scheduler, copies = on_disk()
    scheduler.submit(request(3, 42, generate=1))
    step(scheduler)
    copies.land(good=False)
    (one,) = shape(step(scheduler)[0])
    assert one[0] == 3 and one[1] < 40
    scheduler.check_integrity()
    finish(scheduler, copies)
    assert scheduler.tiers and scheduler.tiers.state.corrupt > 0


def test_one_that_is_aborted_or_parked_while_it_loads_leaves_nothing_behind() -> None:
    scheduler, copies = on_disk()
    scheduler.submit(request(3, 42, generate=1))
    step(scheduler)
    assert scheduler.queues.loading and scheduler.abort(3) and scheduler.idle
    scheduler.check_integrity()
    copies.land()
    scheduler.copy()
    # What was read for it is there for the next one.
    scheduler.submit(request(4, 42, generate=1))
    assert shape(step(scheduler)[0]) == [(4, 40, 2)]
    scheduler.check_integrity()


def test_beside_those_that_decode_blocks_come_back_in_slices() -> None:
    scheduler, copies = tiered(blocks=20)
    scheduler.submit(request(1, 41, generate=1))
    finish(scheduler)
    scheduler.submit(other(2, 76))
    finish(scheduler)
    copies.load_bandwidth = 1e6  # five blocks of 1,000 bytes in 5 ms
    scheduler.submit(other(3, 8))
    scheduler.submit(Request(4, [9] * 6, SamplingParams(max_tokens=30)))
    step(scheduler)
    scheduler.submit(request(5, 42, generate=1))
    assert shape(step(scheduler)[0]) == [(4, 6, 1)]
    assert shape(step(scheduler)[0])[1:] == [(5, 40, 2)]
    assert list(map(len, copies.loaded)) == [5, 5]
    finish(scheduler)


def test_adapters_whose_weights_changed_find_nothing_of_before() -> None:
    scheduler, copies = tiered()
    params = SamplingParams(max_tokens=1)
    scheduler.submit(Request(1, list(range(41)), params, adapter="a"))
    finish(scheduler)
    scheduler.submit(other(2))
    finish(scheduler)
    scheduler.submit(Request(3, list(range(42)), params, adapter="a"))
    assert shape(step(scheduler)[0]) == [(3, 40, 2)]
    scheduler.forget_adapter("a")
    scheduler.submit(Request(4, list(range(42)), params, adapter="a"))
    assert shape(step(scheduler)[0]) == [(4, 0, 42)]
    assert len(copies.loaded) == 1


def test_nobody_gives_way_to_one_that_waits_for_its_blocks() -> None:
    scheduler, copies = tiered(host=100, blocks=40, sequences=1)
    evicted(scheduler, copies)
    for number in (3, 4, 5):
        scheduler.submit(other(number))
        finish(scheduler)
    scheduler.submit(Request(6, [9] * 6, SamplingParams(max_tokens=30)))
    step(scheduler)
    scheduler.submit(request(7, 42, generate=1, priority=5))
    plan, _ = step(scheduler)
    assert not plan.preempted and shape(plan) == [(6, 6, 1)]
    plan, _ = step(scheduler)
    assert plan.preempted == [6] and shape(plan) == [(7, 40, 2)] and len(copies.loaded) == 1
    finish(scheduler)


def test_one_that_would_preempt_waits_for_the_disk_while_the_other_goes_on() -> None:
    scheduler, copies = on_disk(sequences=1)
    scheduler.submit(Request(6, [9] * 6, SamplingParams(max_tokens=30)))
    step(scheduler)
    scheduler.submit(request(7, 30, generate=1, priority=5))
    plan, _ = step(scheduler)
    assert not plan.preempted and shape(plan) == [(6, 6, 1)]
    assert [one.id for one in scheduler.queues.loading] == [7]
    copies.land()
    plan, _ = step(scheduler)
    assert shape(plan) == [(7, 28, 2)] and plan.preempted == [6]
    finish(scheduler, copies)


def test_a_disk_that_hangs_is_not_waited_for() -> None:
    clock = Clock()
    scheduler, copies = on_disk(clock=clock)
    scheduler.submit(request(3, 42, generate=1))
    assert shape(step(scheduler)[0]) == [] and scheduler.queues.loading
    clock.now += 6.0
    assert shape(step(scheduler)[0]) == [(3, 0, 42)]
    finish(scheduler)
    scheduler.submit(other(5))
    finish(scheduler)
    # Nor by the next one, until it answers.
    scheduler.submit(other(2))
    assert shape(step(scheduler)[0])[0][0] == 2 and not scheduler.queues.loading
    finish(scheduler, copies)
    for again in (request(7, 42, generate=1), other(2)):
        scheduler.submit(again)
        step(scheduler)
        waited = bool(scheduler.queues.loading)
        finish(scheduler, copies)
    assert waited
