"""The scheduler's part of speculation: which drafts are computed, and what is left of them."""

from __future__ import annotations

from engine.core.plan import SamplerOutput
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from tests.engine.core.fake_worker import FakeWorker
from tests.engine.core.test_scheduler import BLOCK, make, request, shape


def begin(*, generate: int = 20, max_drafts: int = 4, prompt: int = 5, **options):
    """A request that has drawn its first token, 7, and got the drafts 1, 2, 3 …"""
    scheduler = make(max_drafts=max_drafts, **{"budget": 32, **options})
    scheduler.submit(request(1, prompt, generate=generate))
    plan = scheduler.schedule()
    scheduler.update(
        plan, SamplerOutput({1: [7]}, draft_tokens={1: [1, 2, 3, 4, 5, 6][: plan.requests[0].lookahead]})
    )
    scheduler.check_integrity()
    return scheduler


def test_drafts_are_computed_after_the_token_and_blocks_cover_them_and_the_next() -> None:
    scheduler = begin()
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.tokens, scheduled.start, scheduled.num_draft_tokens, scheduled.lookahead) == (
        [7, 1, 2, 3, 4],
        5,
        4,
        4,
    )
    assert scheduled.sampling is not None
    assert scheduled.history == [0, 1, 2, 3, 4, 7]
    assert len(scheduled.blocks) * BLOCK >= scheduled.end + scheduled.lookahead


def test_drafts_that_come_true_count_as_computed_and_others_do_not() -> None:
    for sampled, computed in (([9], 6), ([1, 9], 7), ([1, 2, 9], 8), ([1, 2, 3, 4, 9], 10)):
        scheduler = begin()
        plan = scheduler.schedule()
        (output,) = scheduler.update(plan, SamplerOutput({1: sampled}, draft_tokens={1: [8]}))
        (one,) = scheduler.running
        assert (output.tokens, one.computed, one.missing) == (sampled, computed, 1)
        assert one.draft_tokens == [8]
        assert shape(scheduler.schedule()) == [(1, computed, 2)]
        scheduler.check_integrity()


def test_drafts_last_for_one_step() -> None:
    scheduler = begin()
    scheduler.update(scheduler.schedule(), SamplerOutput({1: [9]}))
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.tokens, scheduled.num_draft_tokens) == ([9], 0)


def test_a_stop_token_among_those_accepted_ends_the_request_there() -> None:
    scheduler = make(max_drafts=4, budget=32, prefix_caching=True)
    params = SamplingParams(max_tokens=20, stop_token_ids=frozenset({2}))
    scheduler.submit(Request(1, [5] * 5, params))
    scheduler.update(scheduler.schedule(), SamplerOutput({1: [7]}, draft_tokens={1: [1, 2, 3]}))
    (output,) = scheduler.update(scheduler.schedule(), SamplerOutput({1: [1, 2, 3, 9]}))
    assert (output.tokens, output.finish) == ([1, 2], "stop")
    assert scheduler.idle
    scheduler.check_integrity()


def test_nothing_is_drafted_beyond_the_last_token() -> None:
    """Six to generate, one is drawn: four drafts leave one to draw, and none to draft after it."""
    scheduler = begin(generate=6)
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.num_draft_tokens, scheduled.lookahead) == (4, 0)
    for generate, drafts in ((5, 3), (4, 2), (2, 0)):
        (scheduled,) = begin(generate=generate).schedule().requests
        assert (scheduled.num_draft_tokens, scheduled.lookahead) == (drafts, 0)


def test_the_budget_goes_to_wanted_tokens_first() -> None:
    scheduler = begin(budget=8)
    scheduler.submit(request(2, 40))
    plan = scheduler.schedule()
    assert shape(plan) == [(1, 5, 1), (2, 0, 7)]
    assert plan.requests[0].lookahead == 4
    scheduler = begin(budget=8)
    scheduler.submit(request(2, 5))
    assert [
        (scheduled.request_id, scheduled.num_draft_tokens) for scheduled in scheduler.schedule().requests
    ] == [
        (1, 2),
        (2, 0),
    ]


def test_off_means_off() -> None:
    scheduler = begin(max_drafts=0)
    scheduler.update(scheduler.schedule(), SamplerOutput({1: [7]}, draft_tokens={1: [1, 2]}))
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.tokens, scheduled.num_draft_tokens, scheduled.lookahead) == ([7], 0, 0)


def test_speculating_takes_no_block_from_one_that_runs() -> None:
    """Of five blocks each holds two: there is room up to the end of these, and no further."""
    scheduler = make(max_drafts=4, budget=32, blocks=5, sequences=2)
    for number in (1, 2):
        scheduler.submit(request(number, 6, generate=3))
    plan = scheduler.schedule()
    scheduler.update(plan, SamplerOutput({1: [7], 2: [7]}, draft_tokens={1: [1, 1], 2: [1, 1]}))
    plan = scheduler.schedule()
    assert plan.preempted == []
    assert [(scheduled.num_draft_tokens, scheduled.lookahead) for scheduled in plan.requests] == [
        (1, 0),
        (1, 0),
    ]


def test_room_for_drafts_is_given_back_before_anyone_gives_way() -> None:
    """The first has taken a third block for drafts, which the second needs."""
    scheduler = make(max_drafts=4, budget=32, blocks=6, sequences=2)
    scheduler.submit(request(1, 7, generate=9))
    plan = scheduler.schedule()
    assert len(plan.requests[0].blocks) == 3
    scheduler.update(plan, SamplerOutput({1: [7]}))
    scheduler.submit(request(2, 8, generate=5))
    plan = scheduler.schedule()
    assert plan.admitted == [2]
    scheduler.update(plan, SamplerOutput({1: [7], 2: [7]}))
    plan = scheduler.schedule()
    assert plan.preempted == []
    assert len(plan.requests) == 2
    scheduler.check_integrity()


def test_room_for_drafts_keeps_nobody_waiting() -> None:
    scheduler = make(max_drafts=8, budget=32, blocks=6, sequences=2)
    scheduler.submit(request(1, 7, generate=13))
    plan = scheduler.schedule()
    assert len(plan.requests[0].blocks) == 4
    scheduler.update(plan, SamplerOutput({1: [7]}, draft_tokens={1: [1] * 8}))
    # Needs three blocks besides the one that the first may need: they are there if the drafts' are given back.
    scheduler.submit(request(2, 12, generate=2))
    plan = scheduler.schedule()
    assert plan.admitted == [2]
    scheduler.check_integrity()


def test_while_one_waits_for_blocks_drafts_take_none() -> None:
    scheduler = make(max_drafts=8, budget=32, blocks=6, sequences=2)
    scheduler.submit(request(1, 7, generate=13))
    scheduler.submit(request(2, 20, generate=2))
    plan = scheduler.schedule()
    assert plan.admitted == [1]
    assert (len(plan.requests[0].blocks), plan.requests[0].lookahead) == (2, 1)


def test_drafts_beside_siblings_and_prefixes_change_no_token() -> None:
    """Lookahead 0 to 5: the same answers, and in fewer steps with more drafts."""
    steps = []
    for max_drafts in (0, 2, 5):
        scheduler = make(blocks=40, max_drafts=max_drafts, budget=40, prefix_caching=True)
        worker = FakeWorker(BLOCK)
        params = [SamplingParams(max_tokens=30, seed=seed) for seed in range(4)]
        prompt = [1, 0, 1, 1, 0, 1]
        siblings = [Sibling(i, params[i]) for i in (1, 2)]
        scheduler.submit(Request(0, prompt, params[0], siblings=siblings))
        scheduler.submit(Request(3, prompt, params[3]))
        gained = {i: [] for i in range(4)}
        steps.append(0)
        while not scheduler.idle:
            plan = scheduler.schedule()
            for output in scheduler.update(plan, worker.execute(plan)):
                gained[output.request_id] += output.tokens
            scheduler.check_integrity()
            steps[-1] += 1
        assert gained == {i: worker.answer(prompt, params[i]) for i in range(4)}
    assert steps[0] > steps[1] > steps[2]


def test_drafts_beyond_the_room_for_them_are_left_out() -> None:
    scheduler = make(max_drafts=4, budget=32)
    scheduler.submit(request(1, 5, generate=3))
    scheduler.update(scheduler.schedule(), SamplerOutput({1: [7]}, draft_tokens={1: [1] * 9}))
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.num_draft_tokens, scheduled.lookahead) == (1, 0)


def test_nobody_gives_way_to_room_for_drafts() -> None:
    """The first holds all that is left for its drafts as the second needs a block."""
    scheduler = make(max_drafts=4, budget=32, blocks=8, sequences=2)
    for number, prompt in ((1, 5), (2, 8)):
        scheduler.submit(request(number, prompt, generate=9))
    scheduler.update(scheduler.schedule(), SamplerOutput({1: [7], 2: [7]}))
    scheduler.running[0].blocks += scheduler.pool.allocate(scheduler.pool.available)
    held = scheduler.running[1].blocks
    while len(held) > 2:
        scheduler.pool.release([held.pop()])
        scheduler.running[0].blocks += scheduler.pool.allocate(1)
    plan = scheduler.schedule()
    assert plan.preempted == []
    assert [scheduled.request_id for scheduled in plan.requests] == [1, 2]
    scheduler.check_integrity()
