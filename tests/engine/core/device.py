"""A device without a model that knows what every token of the KV cache stands for, and takes its time.

The state after a token is a hash of the adapter's weights and of all tokens up to it; the cache holds states; the next
token is a function of the state and the request's own seed. So what is computed on top of the wrong content is seen at
once, and each answer can be worked out without a scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.core.plan import PENDING, Plan, SamplerOutput, ScheduledRequest
from engine.errors import OutOfMemory

if TYPE_CHECKING:
    from tests.engine.core.world import Choice, World


@dataclass(eq=False)
class Flight:
    """A step on its way through the device, which computes at some time, in order."""

    plan: Plan
    after: Flight | None
    tables: list[list[list[int]]]
    """The block tables of each request in all groups of layers, as of when it was submitted."""
    states: list[list[int]] = field(default_factory=list)
    """Of each request, once computed."""
    sampled: SamplerOutput = field(default_factory=SamplerOutput)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """By request, what the device has for the last token sampled and the draft tokens after it; it may be wrong if the
    token does not count."""
    rejected: dict[int, int] = field(default_factory=dict)
    """By request, of its draft tokens."""
    inputs: list[list[int]] = field(default_factory=list)
    """Of each request, its tokens once computed."""
    begun: list[tuple[int, int]] = field(default_factory=list)
    """Of each request, where it was to begin at the latest, and by how much it may begin earlier."""
    orphan: bool = False
    """Whether nobody waits for it."""
    placed: bool = True
    """Whether its adapters are put into slots, and states copied."""


class Device:
    """A runner for ``StepLoop``."""

    def __init__(self, world: World, *, failing: bool) -> None:
        self.world = world
        self.cache = [[0] * world.block_size for _ in range(world.scheduler.pool.total)]
        self.slots = [0] * (world.scheduler.max_num_seqs + 4)
        """The state cache: what one slot holds stands for all tokens of its request."""
        self.flights: list[Flight] = []
        """Submitted, and not collected."""
        self._launched: list[Flight] = []
        """Submitted, and not computed."""
        self.failing = failing

    def submit(self, plan: Plan, after: Flight | None = None) -> Flight:
        size, alive = self.world.block_size, self.world.alive
        for scheduled in plan.requests:
            one = alive[scheduled.request_id]
            assert scheduled.tokens and scheduled.num_draft_tokens <= self.world.scheduler.max_drafts
            tables = (scheduled.blocks, *scheduled.others)
            assert len(tables) == len(self.world.windows)
            reserved = scheduled.lookahead if self.world.reserving else 0
            assert all(len(table) * size >= scheduled.end + reserved for table in tables)
            assert scheduled.history == one.prompt + one.gained
            assert scheduled.adapter == one.adapter and scheduled.prompt_length == len(one.prompt)
            real = scheduled.end - scheduled.num_draft_tokens
            pending = 0
            if PENDING in scheduled.tokens:
                assert after is not None
                (before,) = (one for one in after.plan.requests if one.request_id == scheduled.request_id)
                assert before.sampling is not None and scheduled.slack == before.num_draft_tokens
                pending = 1 + scheduled.slack
                assert scheduled.tokens == [PENDING] * (1 + scheduled.num_draft_tokens)
                assert scheduled.num_draft_tokens < len(after.tokens[scheduled.request_id])
            else:
                assert not scheduled.slack
            known = scheduled.tokens[: real - scheduled.start] if not pending else []
            assert known == scheduled.history[scheduled.start : real]
            assert (scheduled.sampling is not None) == (real == len(scheduled.history) + pending)
            assert len(one.gained) + pending < one.params.max_tokens
            assert scheduled.sampling is not None or not (
                scheduled.num_draft_tokens or scheduled.lookahead or scheduled.siblings
            )
            assert scheduled.generating == (scheduled.start >= scheduled.prompt_length)
        tables = [[list(table) for table in (one.blocks, *one.others)] for one in plan.requests]
        flight = Flight(plan, after, tables)
        flight.begun = [(scheduled.start, scheduled.slack) for scheduled in plan.requests]
        if self.world.cabinet is not None:
            assert all(self.world.cabinet.has(key) for _, key in plan.swaps)
        self._launched.append(flight)
        try:
            self.fail(flight)
        except OutOfMemory:
            # Before or after.
            flight.placed = self.world.rng.random() < 0.5
            raise
        self.flights.append(flight)
        if after is None:
            self.sample(flight)
        elif self.world.rng.random() < 0.5:
            self.compute(after)
        return flight

    def drafts(self, flight: Flight) -> dict[int, int]:
        return {number: len(tokens) - 1 for number, tokens in flight.tokens.items()}

    def sample(self, flight: Flight, dropped: Collection[int] = ()) -> None:
        self.fail(flight)
        self.compute(flight)
        work = zip(flight.plan.requests, flight.states, flight.inputs, strict=True)
        for scheduled, own, inputs in work:
            number = scheduled.request_id
            if scheduled.prompt_logprobs is not None and number not in dropped:
                scores = self.world.choices[number].scores()
                flight.sampled.prompt_logprobs[number] = scores[scheduled.start : scheduled.end]
            if scheduled.sampling is None:
                continue
            if number in dropped:
                self.world.tally["dropped"] += 1
                continue
            self.answer(scheduled, own, inputs, flight.sampled)
            kept = flight.sampled.tokens[number]
            flight.tokens[number] = [kept[-1], *flight.sampled.draft_tokens.get(number, ())]
            flight.rejected[number] = scheduled.num_draft_tokens + 1 - len(kept)
            if self.world.late and self.world.rng.random() < 0.1:
                late = self.world.rng.choice([number, *(one.id for one in scheduled.siblings)])
                flight.sampled.deferred.add(late)
                del flight.sampled.tokens[late]
                if late == number:
                    flight.tokens[number][0] = self.world.rng.randrange(3)
                self.world.tally["late"] += 1

    def collect(self, flight: Flight) -> SamplerOutput:
        assert self.flights[0] is flight
        self.fail(flight)
        if self.world.midway:
            self.world.midway = False
            self.world.abort()
        self.flights.remove(flight)
        return flight.sampled

    def fail(self, flight: Flight) -> None:
        """It runs out of memory. What was launched is computed nevertheless, at some time."""
        if not self.failing or self.world.rng.random() > 0.03:
            return
        self.world.tally["failed beside another"] += any(one is not flight for one in self.flights)
        if flight in self.flights:
            for one in self.flights:
                one.orphan = True
            self.flights = []
        else:
            flight.orphan = True
        raise OutOfMemory("")

    def sampling(self, plan: Plan) -> set[int]:
        return {scheduled.request_id for scheduled in plan.requests if scheduled.sampling is not None}

    def compute(self, last: Flight) -> None:
        """Those up to ``last``, in order."""
        while last in self._launched:
            self.compute_next(self._launched.pop(0))

    def settle(self) -> None:
        while self._launched:
            self.compute_next(self._launched.pop(0))

    def compute_next(self, flight: Flight) -> None:
        cache, size, cabinet = self.cache, self.world.block_size, self.world.cabinet
        if cabinet is not None:
            if flight.placed:
                cabinet.place(flight.plan.swaps)
            for scheduled in flight.plan.requests:
                assert flight.orphan or scheduled.adapter in (None, *cabinet.inside)
        for source, target in flight.plan.copies:
            cache[target] = list(cache[source])
        for source, target in flight.plan.state_copies if flight.placed else ():
            self.slots[target] = self.slots[source]
        work = list(zip(flight.plan.requests, flight.tables, strict=True))
        for scheduled, tables in work:
            one = self.world.choices[scheduled.request_id]
            (start, slack), inputs = flight.begun[len(flight.states)], list(scheduled.tokens)
            if PENDING in inputs:
                assert flight.after is not None
                start -= flight.after.rejected.get(one.id, slack)
                fed = flight.after.tokens.get(one.id, [])
                inputs = [*fed, *[0] * len(inputs)][: len(inputs)]
            assert scheduled.slack or scheduled.start == start or flight.orphan or one.id in self.world.gone
            own = one.states[:start]
            if len(own) < start:
                # It has ended with a draft token, and this goes on after others.
                own += [0] * (start - len(own))
            elif not flight.orphan:
                self.check_content(one, tables, start)
            before = own[-1] if own else self.first(one)
            for token in inputs:
                own.append(hash((own[-1] if own else self.first(one), token)))
            flight.states.append(own)
            flight.inputs.append(inputs)
            if self.world.stateful:
                assert flight.orphan or not scheduled.start or self.slots[scheduled.state] == before
                self.slots[scheduled.state] = own[-1]
        if self.world.stateful:
            assert len({scheduled.state for scheduled in flight.plan.requests}) == len(flight.plan.requests)
        # What is read was there before anything is written.
        for (scheduled, tables), own in zip(work, flight.states, strict=True):
            for group, table in enumerate(tables):
                for position in range(len(own) - len(scheduled.tokens), len(own)):
                    assert table[position // size] >= 0
                    cache[table[position // size]][position % size] = own[position] ^ group
        for (scheduled, tables), own in zip(work, flight.states, strict=True):
            for group, table in enumerate(tables):
                for i in range(len(own) - len(scheduled.tokens), len(own)):
                    assert cache[table[i // size]][i % size] == own[i] ^ group

    def first(self, one: Choice) -> int:
        return self.world.root(one.adapter, self.world.salt(one.tenant))

    def answer(
        self, scheduled: ScheduledRequest, states: list[int], inputs: list[int], sampled: SamplerOutput
    ) -> None:
        one, rng, params = self.world.alive[scheduled.request_id], self.world.rng, scheduled.sampling
        first = len(inputs) - scheduled.num_draft_tokens
        assert params is one.params and not scheduled.slack
        # All tokens before what is sampled are known by now.
        known = len(scheduled.history)
        assert known == scheduled.end - scheduled.num_draft_tokens
        assert scheduled.history == (one.prompt + one.wanted)[:known]
        kept: list[int] = []
        for place in range(scheduled.num_draft_tokens + 1):
            kept.append(
                self.world.draw(states[scheduled.end - 1 - scheduled.num_draft_tokens + place], params)
            )
            if place < scheduled.num_draft_tokens and kept[-1] != inputs[first + place]:
                self.world.tally["drafts wrong"] += 1
                break
        self.world.tally["drafts right"] += len(kept) - 1
        self.world.tally["stops drafted"] += not params.stop_token_ids.isdisjoint(kept[:-1])
        sampled.tokens[scheduled.request_id] = kept
        assert not scheduled.siblings or one.gained == []
        for sibling in scheduled.siblings:
            sampled.tokens[sibling.id] = [
                self.world.draw(states[scheduled.end - 1 - scheduled.num_draft_tokens], sibling.params)
            ]
        state = hash((states[scheduled.end - 1 - scheduled.num_draft_tokens + len(kept) - 1], kept[-1]))
        draft_tokens = []
        proposing = scheduled.lookahead and (self.world.reserving or params.grammar is not None)
        for _ in range(rng.randint(0, scheduled.lookahead) if proposing else 0):
            draft_tokens.append(self.world.draw(state, params) if rng.random() < 0.75 else rng.randrange(3))
            state = hash((state, draft_tokens[-1]))
        if draft_tokens:
            sampled.draft_tokens[scheduled.request_id] = draft_tokens

    def check_content(self, one: Choice, tables: Sequence[list[int]], length: int) -> None:
        """Raises ``AssertionError`` unless what the next token sees of the first ``length`` is the choice's own in each
        group's blocks."""
        size, cache, states = self.world.block_size, self.cache, one.states
        for group, (table, window) in enumerate(zip(tables, self.world.windows, strict=True)):
            seen = 0 if window is None else max(0, length + 1 - window)
            for start in range(seen // size * size, length, size):
                first, end = max(start, seen), min(start + size, length)
                block = table[start // size]
                assert block >= 0 or first >= end
                found = [state ^ group for state in cache[block][first - start : end - start]]
                assert found == states[first:end], f"request {one.id}, token {first}"
