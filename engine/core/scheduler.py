"""What to compute next: continuous batching without phases.

Each request has tokens wanted and tokens computed, and every step lets the latter catch up with the former under
one token budget. A long prompt is computed over several steps (chunked prefill, https://arxiv.org/abs/2308.16369)
beside the single tokens of requests that decode; guesses at tokens to come are wanted tokens like others, if nobody
else can use the room; a preempted request starts again from what the prefix cache has kept of it.

All requests stand in one order that never changes: by the time of submission, with a head start of
``priority_ageing`` seconds for each point of priority. So a request's priority grows by one for every
``priority_ageing`` seconds that it waits, equals go first come first served, and whoever is here long enough becomes
the first of all: nobody starves.

Tenants share by ``Shares``. Where several want something, one that has less than its share goes before whoever has
more, takes over places of his, and gets its part of the tokens of prompts in each step. So the order above holds
among the requests of one tenant, and where there is only one.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence

from engine.core.block_pool import BlockPool
from engine.core.block_tables import BlockTables
from engine.core.context_caps import context_limit
from engine.core.deadlines import Deadlines
from engine.core.draft_scheduler import DraftScheduler, count_accepted
from engine.core.forks import Forks
from engine.core.latency_estimator import LatencyEstimator
from engine.core.plan import Plan, RequestOutput, SamplerOutput, ScheduledRequest
from engine.core.prefix_cache import PrefixCache
from engine.core.queue import RANK, Queue
from engine.core.request import FinishReason, Request
from engine.core.shares import Shares, divide
from engine.errors import ContextLengthExceeded, DeadlineUnreachable, QueueFull


class Scheduler:
    """``running`` and ``waiting`` are kept by rank: the first always finds blocks, so all of them end."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        max_model_len: int,
        max_waiting: int,
        priority_ageing: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        prefix_caching: bool = True,
        max_drafts: int = 0,
        prefill_chunk: int | None = None,
        context_caps: Sequence[tuple[int, int]] = (),
        chunked_prefill: bool = True,
        preemption: bool = True,
    ) -> None:
        """``priority_ageing``: seconds of waiting that are worth one of priority.
        ``lookahead``: most guesses a step and request.
        ``prefill_chunk``: most tokens of prompts in a step in which others decode, as it is they who wait for it. May
        be changed between steps, to 0 for one without prompts.
        ``context_caps``: (priority, tokens): the longest context of requests of this priority and of those below it,
        down to the next entry's.
        ``chunked_prefill``: prompts may be computed over several steps. Otherwise the budget has to hold the longest
        beside all others' tokens, and a prompt that a step has no room for waits for the next.
        ``preemption``: requests may lose their seats and blocks to others. Otherwise there are to be blocks for as many
        of the longest as there are seats.
        """
        if not chunked_prefill and max_batched_tokens < max_model_len + max_num_seqs:
            raise ValueError("a step must have room for the longest prompt and everybody else's token")
        if not preemption and pool.total * block_size < max_num_seqs * max_model_len:
            raise ValueError("there must be blocks for all sequences at full length")
        if max_batched_tokens < max_num_seqs:
            raise ValueError("a step must have room for one token of every running request")
        if prefill_chunk is not None and prefill_chunk < 1:
            raise ValueError(f"a chunk is one token at least, not {prefill_chunk}")
        self.pool = pool
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.max_model_len = max_model_len
        self.max_waiting = max_waiting
        self.priority_ageing = priority_ageing
        self.max_drafts = max_drafts
        self.prefill_chunk = prefill_chunk
        self.context_caps = sorted(context_caps)
        self.latency = LatencyEstimator(max_num_seqs)
        self.prefixes = PrefixCache(pool, block_size) if prefix_caching else None
        self.waiting = Queue()
        self.running: list[Request] = []
        self.parked: dict[int, Request] = {}
        """Those whose tokens nobody takes: they hold nothing, and go on when they are taken up again."""
        self._chunked_prefill = chunked_prefill
        self._preemption = preemption
        self._tables = BlockTables(pool, self.prefixes, block_size)
        self._drafts = DraftScheduler(self._tables, max_drafts)
        self._forks = Forks()
        self._requests: dict[int, Request] = {}
        self._tenants: Counter[str] = Counter()
        """How many requests each has here, parked ones aside."""
        self._clock = clock
        self._arrivals = itertools.count()
        self._deadlines = Deadlines()
        self._ended: list[int] = []

    @property
    def idle(self) -> bool:
        """Nothing is to be computed."""
        return len(self._requests) == len(self.parked)

    @property
    def waiting_by_priority(self) -> Counter[int]:
        return self.waiting.by_priority

    @property
    def places(self) -> int:
        """Choices of answers that have no seat yet."""
        return len(self.waiting) + len(self._forks)

    @property
    def prompts(self) -> int:
        """Requests with more than one token to be computed that have a seat, or could have one."""
        seats = self.max_num_seqs - len(self.running)
        return sum(one.missing > 1 for one in self.running) + min(len(self.waiting), seats)

    def context_limit(self, priority: int) -> int:
        """Most tokens of a request's prompt and answer together."""
        most = min(self.max_model_len, self.pool.total * self.block_size + 1)
        return context_limit(most, self.context_caps, priority)

    def submit(self, request: Request) -> None:
        """Raises ``ContextLengthExceeded`` if it could never run, ``QueueFull`` if too many wait already, and
        ``DeadlineUnreachable`` if it is not expected to be done in time."""
        limit = self.context_limit(request.priority)
        if request.longest + 1 > limit:
            asked = request.longest + 1 - request.prompt_length
            raise ContextLengthExceeded(request.prompt_length, asked, limit=limit)
        seats = self.max_num_seqs - len(self.running)
        group = 1 + len(request.siblings)
        # Where there is nobody else, even a group beyond the bound only waits for itself.
        room = seats + self.max_waiting
        if request.tenant and self._tenants[request.tenant]:
            # An eighth is left to those who have nothing here yet.
            room -= self.max_waiting // 8
        if self._requests and self.places + group > room:
            raise QueueFull(self.places)
        request.rank = (request.submitted - self.priority_ageing * request.priority, next(self._arrivals))
        for _ in request.siblings:
            next(self._arrivals)
        if request.deadline is not None:
            needed, allowed = self._expect(request), request.deadline - self._clock()
            if needed > allowed or allowed <= 0:
                raise DeadlineUnreachable(needed, allowed)
            self._remember(request.deadline, request.id)
        self._enter(request)
        self._forks.add(request)
        self.waiting.add(request)

    def abort(self, request_id: int) -> bool:
        """Forget the request and free its blocks; False if there is no such request (any more). Siblings go on."""
        request = self._requests.get(request_id)
        if request is None and not self._forks.drop(request_id):
            return False
        self._ended.append(request_id)
        if request is None:
            return True
        self._depart(request)
        if request.siblings:
            self._forks.promote(request)
            self._enter(request)
            if request.deadline is not None and not request.started:
                self._remember(request.deadline, request.id)
        elif self.parked.pop(request_id, None) is None:
            self._leave(request)
        return True

    def park(self, request_id: int) -> bool:
        """Nothing more is computed for it until ``unpark``; False if it is not here, or has nothing to be taken yet.

        It loses its seat and its blocks like one that is preempted: what the prefix cache keeps of it, it finds again.
        """
        request = self._requests.get(request_id)
        if request is None or request.siblings or not request.generated or request_id in self.parked:
            return False
        self._leave(request)
        request.draft_tokens = []
        self.parked[request_id] = request
        self._tenants -= Counter((request.tenant,))
        return True

    def unpark(self, request_id: int) -> bool:
        """False if it is not parked."""
        request = self.parked.pop(request_id, None)
        if request is None:
            return False
        self._tenants[request.tenant] += 1
        self.waiting.add(request)
        return True

    def forget_adapter(self, name: str) -> None:
        """What was computed with the adapter is of no use any more: it was unloaded, or its weights changed."""
        if self.prefixes is not None:
            self.prefixes.forget(name)

    def schedule(self) -> Plan:
        plan = Plan()
        self._expire(plan)
        if self._preemption:
            self._make_way(plan)
        made_way = len(plan.preempted)
        budget = prompts = self.max_batched_tokens
        if (
            self._chunked_prefill
            and self.prefill_chunk is not None
            and any(len(one.tokens) - one.computed == 1 for one in self.running)
        ):
            prompts = self.prefill_chunk
        budget, prompts = self._advance(plan, budget, prompts)
        if not plan.requests and self.running:
            # All who decoded gave way, and it was for them that prompts were held back.
            budget, prompts = self._advance(plan, budget, budget)
        if len(plan.preempted) == made_way:
            budget -= self._admit(plan, budget, prompts)
        if self.max_drafts:
            # Where one waits for blocks, guesses take none.
            contended = bool(self.waiting) and len(self.running) < self.max_num_seqs
            spare = 0 if contended else self.pool.available - len(self.running)
            self._drafts.add(plan, self._requests, budget, spare)
        if plan.requests:
            plan.ended, self._ended = self._ended, []
        return plan

    def update(self, plan: Plan, sampled: SamplerOutput) -> list[RequestOutput]:
        """Take in what the worker drew for the works of ``plan`` that sample."""
        outputs: list[RequestOutput] = []
        for scheduled in plan.requests:
            request = self._requests.get(scheduled.request_id)
            if request is None:
                continue
            request.computed = scheduled.start + len(scheduled.tokens) - scheduled.num_draft_tokens
            if scheduled.scores is not None and request.prompt_logprobs is not None:
                # One that had to give way computes some of its prompt once more.
                known = len(request.prompt_logprobs) - scheduled.start
                request.prompt_logprobs += sampled.scores[request.id][known:]
            if sampled.late and not sampled.late.isdisjoint(
                (request.id, *(one.id for one in request.siblings))
            ):
                request.computed -= 1
                continue
            if scheduled.sampling is None:
                if request.computed >= request.boundary:
                    self._tables.learn(request)
                continue
            output = self._output(request, sampled)
            outputs.append(output)
            finish = output.finish
            if scheduled.num_draft_tokens:
                request.computed += count_accepted(
                    scheduled.tokens[-scheduled.num_draft_tokens :], output.tokens
                )
            if self.max_drafts:
                request.draft_tokens = sampled.draft_tokens.get(request.id, [])
            if request.computed >= request.boundary:
                self._tables.learn(request)
            if not scheduled.generating:
                self._tables.mark(request)
            forks = self._forks.begin(request) if request.siblings else []
            for fork in forks:
                self._tables.share(request, fork)
            if finish is not None:
                self._end(request)
            for fork in forks:
                self._enter(fork)
                outputs.append(self._output(fork, sampled))
                self._seat(fork, outputs[-1].finish)
        return outputs

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless blocks, requests and queues agree about who holds and wants what."""
        self._tables.check_integrity(self.running)
        self._forks.check_integrity(self._requests)
        if any(request.blocks or request.computed for request in self.waiting):
            raise AssertionError("a waiting request holds blocks")
        if any(request.blocks or request.computed for request in self.parked.values()):
            raise AssertionError("a parked request holds blocks")
        active = [*self.running, *self.waiting]
        if sorted([*(request.id for request in active), *self.parked]) != sorted(self._requests):
            raise AssertionError("a request is not in exactly one of running, waiting and parked")
        if +self._tenants != Counter(request.tenant for request in active):
            raise AssertionError("the count of tenants' requests is wrong")
        if len(self.running) > self.max_num_seqs:
            raise AssertionError("more requests run than there are seats")
        for queue in (self.running, self.waiting):
            if any(one.rank >= next_one.rank for one, next_one in itertools.pairwise(queue)):
                raise AssertionError("a queue is out of order")
        if +self.waiting_by_priority != Counter(request.priority for request in self.waiting):
            raise AssertionError("the count of those that wait is wrong")

    def _advance(self, plan: Plan, budget: int, prompts: int) -> tuple[int, int]:
        """Work for those that run, ``prompts`` tokens of prompts at most. Gives what is left of both."""
        running, block_size = self.running, self.block_size
        parts = self._divide(prompts)
        position = 0
        while position < len(running):
            request = running[position]
            position += 1
            count = len(request.tokens) - request.computed
            if count > 1:
                # One token is left for each request behind this one: a long prompt must not stall those that decode.
                count = min(count, budget - (len(running) - position), prompts)
                if parts is not None:
                    count = min(count, parts[request.tenant])
                    parts[request.tenant] -= count
                if count == 0:
                    continue
                prompts -= count
            length = request.computed + count
            if (length > len(request.blocks) * block_size or request.forked) and not self._grow(
                request, length, plan, position - 1
            ):
                position -= 1
                continue
            plan.requests.append(self._scheduled(request, count))
            budget -= count
        return budget, prompts

    def _divide(self, prompts: int) -> dict[str, int] | None:
        """What each tenant may have of so many tokens of prompts; None: all is one tenant's."""
        if len(self._tenants) < 2:
            return None
        wanted: Counter[str] = Counter()
        for one in self.running:
            if one.missing > 1:
                wanted[one.tenant] += one.missing
        if self.waiting and len(self.running) < self.max_num_seqs:
            head = self._next()
            wanted[head.tenant] += head.missing
        return Counter(divide(prompts, wanted))

    def _shares(self) -> Shares:
        return Shares(self.running, self.waiting, seats=self.max_num_seqs, blocks=self.pool.total)

    def _next(self) -> Request:
        """Whose turn it is of those that wait: the first, or the first of a tenant that has less and is of no lower
        priority."""
        head = self.waiting[0]
        if len(self._tenants) < 2:
            return head
        shares, firsts = self._shares(), dict[str, Request]()
        for one in self.waiting:
            if one.priority >= head.priority:
                firsts.setdefault(one.tenant, one)
        least = min(firsts.values(), key=lambda one: shares.excess(one.tenant))
        return least if shares.owed(least) else head

    def _make_way(self, plan: Plan) -> None:
        if not self.waiting or not self.running:
            return
        if len(self._tenants) > 1:
            self._share_out(plan)
        else:
            self._give_way(plan)

    def _share_out(self, plan: Plan) -> None:
        """Whoever has less than its share takes over places from those that have more; and a whole class ahead, from
        those that have more than theirs too, last first."""
        head = self._next()
        if self._can_seat(head):
            return
        victims: list[Request] = []
        shares, left = self._shares(), list(self.running)
        if shares.owed(head):
            while (victim := shares.yielding(left, head)) is not None:
                shares.take(victim)
                left.remove(victim)
                victims.append(victim)
        bound = head.rank[0] + self.priority_ageing
        for one in reversed(self.running):
            kept = one.priority >= head.priority and not shares.owed(head) and shares.excess(one.tenant) <= 0
            if one.rank[0] >= bound and one in left and not kept:
                shares.take(one)
                left.remove(one)
                victims.append(one)
        within_reach = self.pool.available + sum(len(one.blocks) for one in victims)
        if not victims or not self._tables.fits(head, within_reach - len(left)):
            return
        for victim in victims:
            self._unseat(victim)
            plan.preempted.append(victim.id)
            if self._can_seat(head):
                self._begin(head, plan)
                return

    def _give_way(self, plan: Plan) -> None:
        """Whoever waits and is ahead by a whole class takes the seat or the blocks of those that run last."""
        head = self.waiting[0]
        bound = head.rank[0] + self.priority_ageing
        if self.running[-1].rank[0] < bound or self._can_seat(head):
            return
        lower = len(self.running) - bisect_left(self.running, bound, key=lambda one: one.rank[0])
        within_reach = self.pool.available + sum(len(one.blocks) for one in self.running[-lower:])
        if not self._tables.fits(head, within_reach - len(self.running) + lower):
            return
        for _ in range(lower):
            self._preempt(plan)
            if self._can_seat(head):
                # At once: what those that go on need for this step must not keep it out after all.
                self._begin(head, plan)
                return

    def _can_seat(self, request: Request) -> bool:
        # One block more for each request that runs: else a newcomer's chunks would crowd out those already here,
        # and be thrown out again by them.
        if len(self.running) >= self.max_num_seqs:
            return False
        return self._tables.fits(request, self.pool.available - len(self.running)) or (
            self.max_drafts > 0
            and self._tables.trim(self.running)
            and self._tables.fits(request, self.pool.available - len(self.running))
        )

    def _admit(self, plan: Plan, budget: int, prompts: int) -> int:
        """Seats those that wait, in their order, as long as there is room for the first. Gives the tokens used."""
        left = min(budget, prompts)
        before = left
        while left > 0 and self.waiting:
            request = self._next()
            if not self._can_seat(request):
                break
            if not self._chunked_prefill and request.missing > left:
                break
            self._begin(request, plan)
            count = min(request.missing, left)
            plan.requests.append(self._scheduled(request, count))
            left -= count
        return before - left

    def _begin(self, request: Request, plan: Plan) -> None:
        self.waiting.remove(request)
        self._tables.open(request)
        plan.hit_tokens += request.computed
        insort(self.running, request, key=RANK)
        if not request.started:
            request.started = True
            request.cached = request.computed
            plan.admitted.append(request.id)

    def _scheduled(self, request: Request, count: int) -> ScheduledRequest:
        start, tokens = request.computed, request.tokens
        last = start + count == len(tokens)
        scheduled = ScheduledRequest(
            request.id,
            tokens[start : start + count],
            start,
            request.blocks,
            request.params if last else None,
            start >= request.prompt_length,
            tokens,
            request.prompt_length,
        )
        scheduled.adapter = request.adapter
        if request.scoring:
            scheduled.scores = request.params.prompt_logprobs
        if last and request.siblings:
            scheduled.siblings = list(request.siblings)
        return scheduled

    def _grow(self, request: Request, length: int, plan: Plan, position: int) -> bool:
        """Blocks for ``length`` tokens; False if ``request``, at ``position`` of those that run, had to give way."""
        while not self._tables.grow(request, length, plan.copies):
            if self.max_drafts and self._tables.trim(self.running):
                continue
            if self._preempt(plan, position) is request:
                return False
        return True

    def _output(self, request: Request, sampled: SamplerOutput) -> RequestOutput:
        gained, finish = request.extend(sampled.tokens[request.id])
        told = sampled.logprobs.get(request.id) if sampled.logprobs else None
        output = RequestOutput(
            request.id, gained, finish, told and told[: len(gained)], request.cached, request.prompt_logprobs
        )
        request.cached, request.prompt_logprobs = 0, None
        return output

    def _seat(self, fork: Request, finish: FinishReason | None) -> None:
        """A sibling begins: it runs if it can, else it waits as if it had been preempted."""
        insort(self.running, fork, key=RANK)
        if finish is not None:
            self._end(fork)
        elif len(self.running) > self.max_num_seqs:
            self._unseat(fork)

    def _preempt(self, plan: Plan, position: int = 0) -> Request:
        """The last gives way, or the last of the tenant that has most beyond its share. Those before ``position`` have
        their work already."""
        victim = self.running[-1]
        if len(self._tenants) > 1:
            shares = self._shares()
            victim = shares.yielding(self.running[position:], victim) or victim
        self._unseat(victim)
        plan.preempted.append(victim.id)
        return victim

    def _unseat(self, request: Request) -> None:
        self._leave(request)
        request.draft_tokens = []
        self.waiting.add(request)

    def _end(self, request: Request) -> None:
        self.latency.finish(request.generated)
        self._tables.mark(request)
        self._ended.append(request.id)
        self._depart(request)
        self._leave(request)

    def _enter(self, request: Request) -> None:
        self._requests[request.id] = request
        self._tenants[request.tenant] += 1

    def _depart(self, request: Request) -> None:
        """To be called while it has its id, and before it is unparked."""
        del self._requests[request.id]
        if request.id not in self.parked:
            self._tenants -= Counter((request.tenant,))

    def _leave(self, request: Request) -> None:
        position = bisect_left(self.running, request.rank, key=RANK)
        if position < len(self.running) and self.running[position] is request:
            del self.running[position]
            self._tables.close(request)
        else:
            self.waiting.remove(request)

    def _expect(self, request: Request) -> float:
        """Seconds until the request would be done, were it submitted now."""
        places = self.waiting.ahead(request) + 1 - (self.max_num_seqs - len(self.running))
        missing = request.prompt_length - self._tables.hit_tokens(request)
        return self.latency.estimate(missing, request.params.max_tokens, places)

    def _remember(self, deadline: float, request_id: int) -> None:
        if len(self._deadlines) > 2 * len(self._requests) + 64:
            self._deadlines.keep(self._requests)
        self._deadlines.add(deadline, request_id)

    def _expire(self, plan: Plan) -> None:
        """Drops those whose deadline passed before they ever ran; a preempted one has an answer to go on with."""
        if not self._deadlines:
            return
        now = self._clock()
        while (request_id := self._deadlines.pop(now)) is not None:
            request = self._requests.get(request_id)
            if request is not None and not request.started:
                plan.expired.append((request_id, self._expect(request)))
                for sibling in list(request.siblings):
                    self.abort(sibling.id)
                self.abort(request_id)
