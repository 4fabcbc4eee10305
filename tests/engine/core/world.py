"""A scheduler on a few blocks, a device that knows what every token of the KV cache stands for, and what happens."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from engine.core.block_demand import BlockDemand
from engine.core.block_pool import GONE, BlockPool
from engine.core.logprobs import TokenLogprobs
from engine.core.plan import PENDING, Plan, RequestOutput
from engine.core.prefix_cache import Node
from engine.core.request import Request, Sibling
from engine.core.sampling_params import Grammar, SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import ContextLengthExceeded, DeadlineUnreachable, QueueFull
from engine.step_loop import StepLoop
from tests.engine.core.cabinet import Cabinet
from tests.engine.core.device import Device
from tests.engine.core.shelves import Shelves

CONTEXT = 64
WINDOWS: tuple[tuple[int | None, ...], ...] = ((None, 5), (None, None, 9, 3), (7,), (None, 1), (2, 6))
"""Of the groups of layers, where there are windows."""
STOP = 2
VOCAB = 3
ADAPTERS = ("a", "b", "c", "d", "e")
GRAMMAR = Grammar("regex", "")
Ranks = dict[int, tuple[float, int]]
Owed = dict[int, tuple[int, int]]


@dataclass(eq=False)
class Choice:
    """One answer that is wanted."""

    id: int
    prompt: list[int]
    params: SamplingParams
    adapter: str | None
    deadline: float | None
    wanted: list[int]
    tenant: str
    states: list[int]
    """After each token of prompt and answer."""
    group: list[Choice] = field(default_factory=list)
    """All choices of its request."""
    gained: list[int] = field(default_factory=list)
    scheduled: bool = False

    def scores(self) -> list[TokenLogprobs]:
        """Of the prompt's tokens but the first: each with what was before it."""
        states = zip(self.prompt[1:], self.states, strict=False)
        return [TokenLogprobs(token, float(state), []) for token, state in states]


class World:
    """``tally`` counts what happened, to show that all of it does."""

    def __init__(
        self,
        rng: Random,
        tally: Counter[str],
        *,
        caching: bool,
        speculating: bool,
        crowd: bool,
        tenants: int = 1,
        ahead: bool = False,
        failing: bool = False,
        windows: bool = False,
        states: bool = False,
        tiers: bool = False,
        paging: bool = False,
    ) -> None:
        """``ahead``: steps are launched before the results of others are known. ``failing``: some run out of memory.
        ``states``: layers keep a state of each request, too. ``tiers``: there is memory beyond the device's.
        ``paging``: there are more adapters than slots for them."""
        self.rng = rng
        self.tally = tally
        self.now = 0.0
        self.tenants = [chr(ord("a") + i) for i in range(tenants)]
        self.block_size = rng.choice((1, 2, 4, 4))
        sequences = rng.randint(1, 6)
        self.budget = sequences + rng.randint(0, 16)
        self.caps = [(0, 40)] if rng.random() < 0.3 else []
        tokens = rng.randint(12, 48) if crowd else rng.randint(40, 160)
        self.usual = min(30, tokens // 2)
        """Tokens of the longest of usual prompts."""
        self.windows = rng.choice(WINDOWS) if windows else (None,)
        self.reserving = speculating and rng.random() < 0.7
        """Whether draft tokens come of a proposer that needs blocks for them, else of some requests' grammars."""
        self.feeding = ahead and self.reserving and rng.random() < 0.8
        """Whether draft tokens are known to the device alone when the next step is planned."""
        self.shelves = Shelves(rng, self) if tiers else None
        self.cabinet = Cabinet(rng, self) if paging else None
        self.adapters = ADAPTERS if paging else ADAPTERS[:2]
        self.demand = BlockDemand(self.windows, self.block_size, self.budget * (1 + ahead))
        self.scheduler = Scheduler(
            BlockPool(tokens // self.block_size * len(self.windows)),
            block_size=self.block_size,
            max_num_seqs=sequences,
            max_batched_tokens=self.budget,
            max_model_len=CONTEXT,
            max_waiting=rng.choice((0, 2, 6, 12)),
            priority_ageing=10.0,
            clock=lambda: self.now,
            prefix_caching=caching,
            max_drafts=rng.randint(1, 5) if speculating else 0,
            reserve_drafts=self.reserving,
            feed_drafts=self.feeding,
            context_caps=self.caps,
            windows=self.windows,
            overlapping=ahead,
            stateful=states,
            checkpoints=rng.randint(1, 4) if states and caching else 0,
            least_checkpoint=rng.choice((0, 0, 6)),
            tiers=self.shelves and self.shelves.tiers,
            adapters=self.cabinet and self.cabinet.slots,
            pinned_share=rng.choice((0.0, 0.2, 0.5, 1.0)),
        )
        self.ahead = ahead
        self.stateful = states
        self.device = Device(self, failing=failing)
        self.loop = StepLoop(self.scheduler, self.device, ahead=ahead, plan=self.plan)
        self.midway = False
        self.chunks = rng.choice(((None,), (0, 1, 2, 5), (0, 3, 1000), (2, 1000)))
        self.nodes: dict[Node, list[int]] = {}
        """What each block that the prefix cache knows must hold."""
        # A token that was computed cannot be computed again where it changes a state.
        self.late = not states
        self.generations = dict.fromkeys((None, *ADAPTERS), 0)
        """Of adapters' weights."""
        self.texts = [rng.choices(range(VOCAB), k=CONTEXT) for _ in range(3)]
        self.alive: dict[int, Choice] = {}
        self.choices: dict[int, Choice] = {}
        """Those that have left, too."""
        self.gone: list[int] = []
        self.ended: list[int] = []
        self.number = 0

    # What a request alone would get

    def root(self, adapter: str | None, salt: bytes) -> int:
        return hash((1 + ADAPTERS.index(adapter) if adapter else 0, self.generations[adapter], len(salt), 0))

    def salt(self, tenant: str) -> bytes:
        """Of another length for each: what one has computed is wrong for all others."""
        return b"s" * self.tenants.index(tenant)

    def draw(self, state: int, params: SamplingParams) -> int:
        return hash((state, params.seed)) % 1009 % VOCAB

    def choice(
        self, prompt: list[int], params: SamplingParams, adapter: str | None, tenant: str = "a"
    ) -> Choice:
        self.number += 1
        state, states, wanted = self.root(adapter, self.salt(tenant)), [], []
        for token in prompt:
            state = hash((state, token))
            states.append(state)
        while True:
            wanted.append(self.draw(state, params))
            state = hash((state, wanted[-1]))
            states.append(state)
            if wanted[-1] in params.stop_token_ids or len(wanted) == params.max_tokens:
                one = Choice(self.number, prompt, params, adapter, None, wanted, tenant, states)
                self.choices[one.id] = one
                return one

    # What may happen

    def prompt(self) -> list[int]:
        """Often the beginning of another, its length around a block's end; sometimes an answer goes on from there."""
        rng, size = self.rng, self.block_size
        text = rng.choice(self.texts)
        if rng.random() < 0.7:
            length = size * rng.randint(0, self.usual // size) + rng.choice((-1, 0, 1))
        else:
            length = rng.randint(1, self.usual)
        tail = rng.choices(range(VOCAB), k=rng.choice((0, 0, 1, size)))
        return (text[: max(1, length)] + tail)[:CONTEXT]

    def submit(self) -> None:
        rng, scheduler = self.rng, self.scheduler
        prompt = self.prompt()
        if rng.random() < 0.05:
            prompt = prompt * (1 + CONTEXT // len(prompt))
        adapter = rng.choice((None, None, None, *self.adapters))
        tenant = rng.choice(self.tenants)
        stops = frozenset({STOP}) if rng.random() < 0.4 else frozenset()
        usual = SamplingParams(
            1,
            stop_token_ids=stops,
            prompt_logprobs=0 if rng.random() < 0.15 else None,
            grammar=GRAMMAR if rng.random() < 0.3 else None,
        )
        group = [
            self.choice(
                prompt, replace(usual, max_tokens=rng.choice((1, 2, 5, 9, 17)), seed=seed), adapter, tenant
            )
            for seed in rng.choices(range(3), k=rng.choice((1, 1, 1, 2, 3, 5)))
        ]
        deadline = self.now + rng.choice((-1, 0.5, 3, 20, 200)) if rng.random() < 0.3 else None
        for one in group:
            one.deadline, one.group = deadline, group
        request = Request(
            group[0].id,
            prompt,
            group[0].params,
            priority=rng.randint(-2, 2),
            submitted=self.now,
            deadline=deadline,
            weight=rng.choice((0.25, 1.0, 1.0, 4.0)),
            adapter=adapter,
            tenant=tenant,
            salt=self.salt(tenant),
            siblings=[Sibling(one.id, one.params) for one in group[1:]],
            pin=rng.choice((0, 0, 0, 1.0, 30.0, 1e6)),
        )
        most = max(one.params.max_tokens for one in group)
        cap = min([CONTEXT, *(cap for priority, cap in self.caps if request.priority <= priority)])
        blocks = self.demand.of(len(prompt) + most - 1)
        fits = len(prompt) + most <= cap and blocks <= scheduler.pool.total
        slots = scheduler.max_num_seqs - len(scheduler.running)
        here = any(one.tenant == tenant and one.id not in scheduler.parked for one in self.alive.values())
        room = slots + scheduler.intake.max_waiting - (scheduler.intake.max_waiting // 8 if here else 0)
        full = bool(self.alive) and scheduler.num_waiting + len(group) > room
        before = (scheduler.num_waiting, scheduler.idle)
        try:
            scheduler.submit(request)
        except ContextLengthExceeded:
            assert not fits
        except QueueFull:
            assert fits and full
            self.tally["queue full"] += 1
        except DeadlineUnreachable as late:
            assert fits and not full and deadline is not None
            assert late.allowed <= 0 or late.needed > late.allowed
            self.tally["unreachable"] += 1
        else:
            assert fits and not full
            self.alive |= {one.id: one for one in group}
            self.tally["siblings"] += len(group) - 1
            if rng.random() < 0.05:
                # The next turn of the same chat may come: this one's answer is text, too.
                self.texts[rng.randrange(3)] = (
                    prompt + group[0].wanted + rng.choices(range(VOCAB), k=CONTEXT)
                )[:CONTEXT]
            return
        self.tally["refused"] += 1
        assert before == (scheduler.num_waiting, scheduler.idle)

    def abort(self) -> None:
        """Mostly of one that is alive, else of one that is not (any more)."""
        if self.alive and self.rng.random() < 0.9:
            number = self.rng.choice(list(self.alive))
            one = self.alive[number]
            if len(one.group) > 1 and not one.gained:
                self.tally["leaders aborted" if one.scheduled else "siblings aborted"] += 1
            assert self.scheduler.abort(number)
            self.leave(number)
            self.tally["aborted"] += 1
        else:
            number = self.rng.choice([self.number + 1, *self.gone[-5:]])
        assert not self.scheduler.abort(number)

    def park(self) -> None:
        """One that was parked goes on, or another is parked."""
        rng, scheduler = self.rng, self.scheduler
        parked = [*scheduler.parked, *scheduler.queues.steps.parking]
        if parked and rng.random() < 0.5:
            assert scheduler.unpark(rng.choice(parked))
        elif self.alive:
            number = rng.choice(list(self.alive))
            fits = bool(self.alive[number].gained) and number not in scheduler.parked
            assert scheduler.park(number) == fits
            self.tally["parked"] += fits
        else:
            assert not scheduler.park(self.number + 1) and not scheduler.unpark(self.number + 1)

    def forget(self) -> None:
        name = self.rng.choice(self.adapters)
        used = name in (one.adapter for one in self.alive.values())
        if self.cabinet is not None:
            if used:
                return
            self.cabinet.forget(name)
        self.scheduler.forget_adapter(name)
        self.generations[name] += not used

    def step(self, *, midway: bool = False) -> None:
        """``midway``: someone is aborted while the worker computes."""
        self.now += self.rng.choice((0.1, 0.5, 2.0))
        self.midway = midway
        if self.cabinet is not None:
            self.cabinet.tick(all_=not self.late)
        landed = self.loop.step()
        if landed is None:
            if self.shelves and self.scheduler.queues.loading:
                self.shelves.wait(1.0)
            return
        if landed.error is not None:
            self.tally["out of memory"] += 1
            return
        plan = landed.plan
        self.take(landed.outputs)
        decoded = sum(len(scheduled.tokens) for scheduled in plan.requests if scheduled.generating)
        self.scheduler.latency.observe(0.1, prefill_tokens=plan.tokens - decoded, decode_tokens=decoded)

    def plan(self) -> Plan:
        scheduler = self.scheduler
        scheduler.prefill_chunk = self.rng.choice(self.chunks)
        decoding = {one.id for one in scheduler.running if one.missing == 1 and not self.must_wait(one)}
        running = {one.id: one.rank for one in scheduler.running}
        waiting = {one.id: one.rank for one in (*scheduler.waiting, *scheduler.queues.loading)}
        owed = {
            one.id: (one.credit + one.missing // 2, one.credit + len(one.tokens) // 2)
            for one in (*scheduler.running, *scheduler.waiting)
        }
        plan = scheduler.schedule()
        self.check_plan(plan, decoding, running, waiting, owed)
        for number in plan.ended:
            assert number in self.gone
        if plan.requests:
            self.ended += plan.ended
        return plan

    def must_wait(self, request: Request) -> bool:
        """Whether a plan made ahead leaves it out."""
        if request.in_flight and request.id in self.scheduler.queues.steps.parking:
            return True
        if request in self.scheduler.queues.steps.spoiled:
            return True
        ends = request.generated + request.pending >= request.params.max_tokens
        return request.pending > 0 and (ends or bool(request.siblings))

    def check_plan(self, plan: Plan, decoding: set[int], running: Ranks, waiting: Ranks, owed: Owed) -> None:
        """``owed``: by request, five times the tokens of the longest prompt that may overtake it as it is, and where it
        is preempted."""
        scheduler, tally = self.scheduler, self.tally
        for number, needed in plan.expired:
            assert number in waiting and needed >= 0
            for one in [one for one in self.alive[number].group if one.id in self.alive]:
                assert one.deadline is not None and one.deadline <= self.now and not one.scheduled
                self.leave(one.id)
            del waiting[number]
            tally["expired"] += 1
        worked = {scheduled.request_id for scheduled in plan.requests}
        for number in (*plan.admitted, *worked):
            for one in self.alive[number].group:
                one.scheduled = True
        for one in self.alive.values():
            assert one.scheduled or one.deadline is None or one.deadline > self.now
        assert plan.ahead == (self.ahead and bool(self.device.flights))
        loading = [*scheduler.queues.loading, *(self.cabinet.reading if self.cabinet else ())]
        assert plan.requests or plan.ahead or loading or len(self.alive) == len(scheduler.parked), (
            "requests, but no work"
        )
        tally["loading"] += len(scheduler.queues.loading)
        tally["ahead"] += plan.ahead
        tally["drafts unseen"] += sum(scheduled.tokens.count(PENDING) > 1 for scheduled in plan.requests)
        tally["slack"] += any(scheduled.slack for scheduled in plan.requests)
        tally["stalled"] += plan.stalled
        assert plan.ahead or not plan.stalled
        assert not (plan.ahead and plan.preempted)
        assert len(worked) == len(plan.requests) <= scheduler.max_num_seqs
        assert plan.tokens <= self.budget
        # Whoever decodes gains a token in every step, unless it gives way.
        assert plan.stalled or worked | set(plan.preempted) >= decoding
        if scheduler.prefill_chunk is not None and decoding - set(plan.preempted):
            # One that lacks a single token is as good as one that decodes.
            prompts = [
                scheduled for scheduled in plan.requests if scheduled.start + 1 < len(scheduled.history)
            ]
            assert sum(len(scheduled.tokens) for scheduled in prompts) <= scheduler.prefill_chunk
        tally["preempted"] += len(plan.preempted)
        tally["copies"] += len(plan.copies)
        tally["state copies"] += len(plan.state_copies)
        assert self.stateful or not plan.state_copies
        tally["hits"] += plan.hit_tokens > 0
        tally["chunks"] += sum(scheduled.sampling is None for scheduled in plan.requests)
        assert scheduler.prefixes is not None or not plan.hit_tokens
        # Those whose adapter has no slot let others pass.
        turns = {one.id for one in scheduler.waiting if scheduler._admission.blocked(one)}
        tally["blocked"] += len(turns)
        if len(self.tenants) > 1:
            return
        # The last in rank give way, and the very last first; only short prompts are let in past others that wait.
        gave_way = [running[number] for number in plan.preempted if number in running]
        stayed = [rank for number, rank in running.items() if number not in plan.preempted]
        assert gave_way == sorted(gave_way, reverse=True)
        assert not gave_way or not stayed or max(stayed) < min(gave_way)
        seated = {one.id for one in (*scheduler.running, *scheduler.queues.loading)}
        seated |= turns
        kept_out = [rank for number, rank in waiting.items() if number not in seated | set(plan.preempted)]
        for scheduled in plan.requests:
            rank = waiting.get(scheduled.request_id)
            if kept_out and rank is not None and rank > min(kept_out):
                tally["overtook"] += 1
                most = max(tokens[number in plan.preempted] for number, tokens in owed.items())
                assert scheduler.prefixes or 5 * len(scheduled.history) <= most

    def take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            one = self.alive[output.request_id]
            one.gained += output.tokens
            assert output.tokens and one.gained == one.wanted[: len(one.gained)]
            if one.params.prompt_logprobs is None or one.gained != output.tokens:
                assert output.prompt_logprobs is None
            elif output.prompt_logprobs:
                # Only one choice of a prompt reports them.
                assert output.prompt_logprobs == one.scores()
                self.tally["scored"] += 1
            if output.finish is not None:
                assert one.gained == one.wanted
                assert output.finish == ("stop" if one.gained[-1] in one.params.stop_token_ids else "length")
                self.leave(output.request_id)
                self.tally["finished"] += 1
            else:
                assert len(one.gained) < len(one.wanted)

    def leave(self, number: int) -> None:
        del self.alive[number]
        self.gone.append(number)

    # What always holds

    def check(self) -> None:
        scheduler = self.scheduler
        scheduler.check_integrity()
        self.device.settle()
        pool, size = scheduler.pool, self.block_size
        for flight in self.device.flights:
            assert self.ahead
            # Nobody else holds what is written, whatever happened to those for whom it is.
            for scheduled, tables, own in zip(
                flight.plan.requests, flight.tables, flight.states, strict=True
            ):
                for table in tables:
                    start = len(own) - len(scheduled.tokens)
                    written = table[start // size : (len(own) - 1) // size + 1]
                    assert all(pool.holders(block) == 1 for block in written)
        assert pool.free + pool.cached + pool.used == pool.total
        assert scheduler.idle == (len(self.alive) == len(scheduler.parked))
        known = [
            *scheduler.running,
            *scheduler.waiting,
            *scheduler.queues.loading,
            *scheduler.parked.values(),
        ]
        begun = [one.id for one in known]
        assert sorted([*begun, *(other.id for one in known for other in one.siblings)]) == sorted(self.alive)
        for request in known:
            # What it computes until it is done makes up for those that overtook it; unless the cache has it.
            assert scheduler.prefixes or request.credit + request.missing // 2 >= 0
        for request in scheduler.running:
            tables = (request.blocks, *request.others)
            self.device.check_content(self.alive[request.id], tables, request.computed)
            self.tally["behind"] += request.behind > 0
            # Blocks for draft tokens come on top.
            drafts = len(self.windows) * (1 + self.demand.count((2 + self.feeding) * scheduler.max_drafts))
            assert request.held <= self.demand.of(len(request.tokens) + request.pending) + drafts
        if scheduler.prefixes is not None:
            for node in scheduler.prefixes._nodes.values():
                for group, block in enumerate((node.block, *node.others)):
                    if block != GONE:
                        held = [state ^ group for state in self.device.cache[block]]
                        assert held == self.content(node), f"block {block}"
        self.tally["pinned"] += len(scheduler.pins or ())
        if self.shelves:
            self.shelves.check()

    def content(self, node: Node) -> list[int]:
        """What the block of ``node`` must hold: worked out when it is first seen."""
        found = self.nodes.get(node)
        if found is None:
            assert node.parent is not None
            salt = len(node.tokens) - 4 * self.block_size
            first = self.root(node.adapter, node.tokens[:salt])
            state = self.content(node.parent)[-1] if node.parent.parent else first
            found = self.nodes[node] = []
            for start in range(salt, len(node.tokens), 4):
                state = hash((state, int.from_bytes(node.tokens[start : start + 4], "little")))
                found.append(state)
        return found

    def drain(self) -> None:
        """Whatever is left ends within a bounded number of steps, and each end was told exactly once."""
        scheduler, self.late = self.scheduler, False
        # One whose state is lost with each step that fails begins again each time: of that there is no bound.
        self.device.failing = False
        for number in [
            *scheduler.parked,
            *(number for number in scheduler.queues.steps.parking if number in self.alive),
        ]:
            assert scheduler.unpark(number)
        left = sum(len(one.prompt) + len(one.wanted) for one in self.alive.values())
        # Each may have to be computed again for each other that comes before it; and chunks of 0 take their time.
        for _ in range(50 + 6 * left * math.isqrt(1 + len(self.alive))):
            if not self.alive:
                break
            self.step()
            self.check()
        assert not self.alive, "requests hang"
        while self.loop.in_flight:
            self.step()
            self.check()
        assert scheduler.idle and scheduler.pool.used == 0
        assert scheduler.num_waiting == 0 and not scheduler.waiting_by_priority
        last = self.choice([0], SamplingParams(1), None)
        self.alive[last.id] = last
        scheduler.submit(Request(last.id, [0], last.params, submitted=self.now, tenant="a"))
        while last.id in self.alive:
            self.step()
            self.check()
        assert sorted(self.ended) == sorted(set(self.gone) - {last.id})
