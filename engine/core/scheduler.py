"""What to compute next: continuous batching without phases.

Each request has tokens wanted and tokens computed, and every step lets the latter catch up with the former under one
token budget. A long prompt is computed over several steps (chunked prefill, https://arxiv.org/abs/2308.16369) beside
the single tokens of requests that decode; draft tokens are wanted tokens like others, where the step has budget and
blocks left for them; a preempted request starts again from what the prefix cache has kept of it.

Requests have a fixed order, their rank: the time of submission, less ``priority_ageing`` seconds for each point of
priority. So a request's effective priority grows by one for every ``priority_ageing`` seconds that it waits, equals are
first come, first served, and whoever waits long enough becomes the first of all: nobody starves.

Tenants share by ``Shares``. Where several have open requests, one below its share goes before those above theirs, takes
over slots of theirs, and gets its part of each step's prompt tokens. So rank decides among the requests of one tenant.

``intake.py`` decides who is let in, ``admission.py`` who runs next, ``preemption.py`` who gives way,
``step_planner.py`` how many tokens of each; ``results.py`` takes in what came of a step, ``steps_in_flight.py`` what is
still to come; ``request_queues.py`` holds the state.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from engine.core.adapter_slots import AdapterSlots
from engine.core.admission import Admission
from engine.core.block_demand import BlockDemand
from engine.core.block_pool import BlockPool
from engine.core.block_tables import BlockTables
from engine.core.draft_scheduler import DraftScheduler
from engine.core.forks import Forks
from engine.core.intake import Intake
from engine.core.latency_estimator import LatencyEstimator
from engine.core.loading import Loading
from engine.core.pins import Pins
from engine.core.plan import Plan, RequestOutput, SamplerOutput
from engine.core.preemption import Preemption
from engine.core.prefill_budget import PrefillBudget
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request
from engine.core.request_queues import RequestQueues
from engine.core.results import Results
from engine.core.state_checkpoints import StateCheckpoints
from engine.core.state_slots import StateSlots
from engine.core.step_planner import StepPlanner
from engine.core.tiers.remote import RemoteBlocks
from engine.core.tiers.tiered_cache import TieredCache, TierSet


class Scheduler:
    """``schedule`` plans a step; ``advance`` records that it was submitted, and what it computes; ``commit`` records
    the tokens that it sampled. The first request by rank always gets blocks, so every request ends."""

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
        reserve_drafts: bool = True,
        feed_drafts: bool = False,
        prefill_chunk: int | None = None,
        context_caps: Sequence[tuple[int, int]] = (),
        chunked_prefill: bool = True,
        preemption: bool = True,
        windows: Sequence[int | None] = (None,),
        overlapping: bool = False,
        stateful: bool = False,
        checkpoints: int = 0,
        least_checkpoint: int = 128,
        tiers: TierSet | None = None,
        pinned_share: float = 0.25,
        stages: int = 1,
        adapters: AdapterSlots | None = None,
    ) -> None:
        """``priority_ageing``: seconds of waiting that are worth one point of priority.
        ``max_drafts``: most draft tokens a step and request; 0 without speculation.
        ``reserve_drafts``: whether blocks are allocated for those that are yet to be proposed. ``feed_drafts``: whether
        a step may be planned before they are known to the host: they are ``PENDING`` then.
        ``prefill_chunk``: most prompt tokens in a step in which other requests decode, which wait for it. May be
        changed between steps, to 0 for one without prompts.
        ``context_caps``: (priority, tokens): the longest context of requests of this priority and of those below it,
        down to the next entry's.
        ``chunked_prefill``: prompts may be computed over several steps. Otherwise the budget has to hold the longest
        prompt beside a token of every other request, and a prompt that does not fit into a step waits for the next.
        ``preemption``: requests may lose their slots and blocks to others. Otherwise there must be blocks for
        ``max_num_seqs`` requests of full length.
        ``windows``: of each group of layers, as ``engine/kv_groups.py`` orders them.
        ``overlapping``: a step may be planned while one is in flight: windows then move on a step later.
        ``stateful``: layers keep a state of each running request. What was computed is then nothing without it, so
        there is prefix caching only with ``checkpoints``: so many states are kept of prefixes, each of which spares
        ``least_checkpoint`` tokens or more. It is not computed twice, so there are no draft tokens.
        ``tiers``: memory beyond the device's that keeps copies of blocks, where all layers are in one group that sees
        all tokens.
        ``pinned_share``: of the blocks, most that prompts may ask to be kept.
        ``stages``: of a pipeline. Each may have a step in flight, with its part of the requests: none that waits for
        its token in another.
        ``adapters``: the slots that requests' adapters need; ``None``: all that they ask for are there.
        """
        demand = BlockDemand(windows, block_size, max_batched_tokens * (1 + overlapping))
        if not chunked_prefill and max_batched_tokens < max_model_len + max_num_seqs:
            raise ValueError("a step must hold the longest prompt and a token of every other request")
        if not preemption and pool.total < max_num_seqs * demand.of(max_model_len):
            raise ValueError("there must be blocks for all sequences at full length")
        if max_batched_tokens < max_num_seqs:
            raise ValueError("a step must hold one token of every running request")
        if prefill_chunk is not None and prefill_chunk < 1:
            raise ValueError(f"a chunk is one token at least, not {prefill_chunk}")
        if stateful and ((prefix_caching and not checkpoints) or max_drafts or tiers is not None):
            raise ValueError("a state is of all tokens of its request, and none of them can be taken back")
        if checkpoints and not (stateful and prefix_caching and chunked_prefill):
            raise ValueError(
                "checkpoints are of states that the prefix cache finds, and end chunks of prompts"
            )
        if tiers is not None and (list(windows) != [None] or not prefix_caching):
            raise ValueError(
                "tiers are for blocks that the prefix cache finds, of one group without a window"
            )
        self.pool = pool
        self.block_size = block_size
        self.max_batched_tokens = max_batched_tokens
        self.max_drafts = max_drafts
        self.prefill_chunk = prefill_chunk
        self.prefixes = PrefixCache(pool, block_size, demand) if prefix_caching else None
        self._chunked_prefill = chunked_prefill
        self._may_preempt = preemption
        self._states = StateSlots(max_num_seqs + checkpoints) if stateful else None
        self._checkpoints = None
        if self._states is not None and self.prefixes is not None:
            self._checkpoints = StateCheckpoints(self._states, checkpoints, least=least_checkpoint)
            self.prefixes.has_state = self._checkpoints.__contains__
        self.tiers = None
        if tiers is not None and self.prefixes is not None:
            self.tiers = TieredCache(pool, self.prefixes, tiers)
        self._tables = BlockTables(
            pool, self.prefixes, block_size, demand, self._states, self.tiers, self._checkpoints
        )
        self.queues = RequestQueues(self._tables, max_num_seqs, separate=stages > 1)
        self.running, self.waiting, self.parked = self.queues.running, self.queues.waiting, self.queues.parked
        self._admission = Admission(self.queues, self._tables, drafting=max_drafts > 0, adapters=adapters)
        self._prefill = PrefillBudget(self.queues, self._tables, self._admission, chunked=chunked_prefill)
        self._drafts = DraftScheduler(self._tables, max_drafts, reserving=reserve_drafts, feeding=feed_drafts)
        self._forks = Forks()
        self.intake = Intake(
            self.queues,
            self._tables,
            self._forks,
            # The last token's keys and values are not stored.
            max_tokens=min(max_model_len, demand.longest(pool.total, max_model_len) + 1),
            max_waiting=max_waiting,
            context_caps=context_caps,
            priority_ageing=priority_ageing,
            clock=clock,
        )
        self.pins = None
        if self.prefixes is not None and list(windows) == [None] and not stateful:
            self.pins = Pins(pool, pinned_share)
        self._clock = clock
        self._loading = None
        if self.tiers is not None:
            self._loading = Loading(
                self.queues, self._tables, self._admission, self.tiers, self.latency, clock=clock
            )
        self._preemption = Preemption(
            self.queues, self._tables, self._admission, self._loading, priority_ageing=priority_ageing
        )
        self._planner = StepPlanner(
            self.queues,
            self._tables,
            self._admission,
            self._preemption,
            chunked=chunked_prefill,
            drafting=max_drafts > 0,
        )
        self._results = Results(
            self.queues,
            self._tables,
            self._forks,
            self.intake,
            drafting=max_drafts > 0,
            pins=self.pins,
            clock=clock,
        )
        self._stages = stages
        self.adapters = adapters
        self._stalled = False

    @property
    def max_num_seqs(self) -> int:
        return self.queues.max_num_seqs

    @property
    def idle(self) -> bool:
        """Nothing is to be computed."""
        return len(self.queues.by_id) == len(self.parked)

    @property
    def can_run_ahead(self) -> bool:
        """Whether another step can be planned although the last one is in flight: not if draft tokens may come of it
        that have to be known, or if a request is to be preempted."""
        return not self._stalled and not (self.max_drafts and self._drafts.binds(self.queues.steps.last))

    @property
    def feeds_drafts(self) -> bool:
        """Whether ``expect`` is to be told of draft tokens that the host has not seen."""
        return self._drafts.feeding

    @property
    def waiting_by_priority(self) -> Counter[int]:
        return self.waiting.by_priority

    @property
    def num_waiting(self) -> int:
        return self.intake.num_waiting

    @property
    def latency(self) -> LatencyEstimator:
        return self.intake.latency

    @property
    def num_prefills(self) -> int:
        """Requests with more than one token to compute that are running, or could be."""
        prefilling = sum(request.missing > 1 for request in self.running)
        return prefilling + min(len(self.waiting), self.queues.free_slots)

    def context_limit(self, priority: int) -> int:
        return self.intake.context_limit(priority)

    def submit(self, request: Request) -> None:
        """Raises what ``Intake.submit`` does."""
        self.intake.submit(request)

    def abort(self, request_id: int) -> bool:
        """Drops the request and frees its blocks; False if there is no such request (any more). Siblings go on."""
        request = self.queues.by_id.get(request_id)
        if request is None and not self._forks.drop(request_id):
            return False
        self.queues.ended.append(request_id)
        if request is None:
            return True
        self.queues.forget(request)
        if request.siblings:
            self._forks.promote(request)
            self.queues.open(request)
            if self._states is None:
                self.queues.steps.void(request)
            else:
                self.queues.spoil([request])
            if not request.started:
                self.intake.watch(request)
        elif self.parked.pop(request_id, None) is None:
            self.queues.remove(request)
        return True

    def park(self, request_id: int) -> bool:
        """Nothing more is planned for it until ``unpark``; False if it is unknown, or has no tokens to read yet.

        It loses its slot and its blocks as if preempted: what the prefix cache keeps of it, it finds again.
        """
        request = self.queues.by_id.get(request_id)
        if request is None or request.siblings or not request.generated or request_id in self.parked:
            return False
        self.queues.park(request)
        return True

    def unpark(self, request_id: int) -> bool:
        """False if it is not parked."""
        return self.queues.unpark(request_id)

    @property
    def copying(self) -> bool:
        """Whether blocks are being copied between tiers of memory, or are to be."""
        return self._loading is not None and self._loading.busy

    def copy(self) -> None:
        """Goes on with that, as each ``schedule`` does, where none is needed."""
        if self._loading is not None:
            self._loading.tick()

    def ask(self, remote: RemoteBlocks) -> None:
        """Prompts that no tier here has are asked of another engine. Raises ``ValueError`` without tiers."""
        if self._loading is None:
            raise ValueError("blocks of another engine come through tiers")
        self._loading.remote = remote

    def wait(self, seconds: float) -> None:
        """Until a block is copied between tiers of memory, but not longer; then ``schedule`` goes on."""
        if self.tiers is not None:
            self.tiers.copier.wait(seconds)

    def forget_adapter(self, name: str) -> None:
        """Invalidates what was computed with the adapter: it was unloaded, or its weights changed."""
        if self.prefixes is not None:
            self.prefixes.forget(name)
        if self.tiers is not None:
            self.tiers.forget(name)
        if self.adapters is not None:
            self.adapters.forget(name)

    def forget_all(self) -> None:
        """Invalidates what was computed for any prompt: the blocks' content is gone."""
        if self.prefixes is not None:
            self.prefixes.forget_all()

    def schedule(self) -> Plan:
        """The next step. While one is in flight, it is made ahead: tokens that are being sampled are ``PENDING`` in it,
        nobody is preempted, and whoever cannot go on without knowing them is left out."""
        plan = Plan(ahead=len(self.queues.steps) > 0)
        self._expire(plan)
        if self.pins:
            self.pins.expire(self._clock())
        if self.adapters is not None and self.waiting:
            self.adapters.begin(self.running, self.waiting)
        if self._loading is not None:
            self._loading.tick()
        if self._may_preempt:
            self._preemption.make_room(plan)
        preempted = len(plan.preempted)
        budget = self.max_batched_tokens
        if plan.ahead:
            decoding = sum(request.missing == 1 for request in self.running)
        else:
            decoding = sum(len(request.tokens) - request.computed == 1 for request in self.running)
        prompts = budget - decoding
        if self._chunked_prefill and self.prefill_chunk is not None and decoding:
            prompts = min(prompts, self.prefill_chunk)
        parts = self._prefill.divide(prompts)
        most = self._most_requests()
        budget, prompts = self._planner.go_on(plan, budget, prompts, parts, most)
        if not plan.requests and self.running and not plan.ahead:
            # All that decoded were preempted, and it was for them that prompts were limited.
            parts = self._prefill.divide(budget, admitting=False)
            budget, prompts = self._planner.go_on(plan, budget, budget, parts, most)
        if len(plan.preempted) == preempted and not plan.stalled:
            budget -= self._planner.let_in(plan, min(budget, prompts), parts, most)
        if self.max_drafts:
            # Draft tokens take no blocks from a request that waits for some.
            contended = bool(self.waiting) and len(self.running) < self.queues.max_num_seqs
            spare = 0 if contended else self.pool.available - self._tables.groups * len(self.running)
            self._drafts.add(plan, self.queues.by_id, budget, spare)
        if plan.requests:
            if self.adapters is not None:
                plan.swaps = self.adapters.take_swaps()
            plan.ended, self.queues.ended = self.queues.ended, []
            if self._tables.altered:
                plan.altered, self._tables.altered = self._tables.altered, {}
            if self._states is not None:
                plan.state_copies = self._states.take_copies()
        self._stalled = plan.stalled
        return plan

    def expect(self, drafts: Mapping[int, int]) -> None:
        """The last step in flight proposes so many draft tokens for the next one, by request: ``schedule`` may plan
        them, as ``PENDING``."""
        self._drafts.expect(self.queues.steps.last, self.queues.by_id, drafts)

    def advance(self, plan: Plan) -> None:
        """The worker has ``plan``: what it is to compute need not be planned again."""
        self.queues.steps.submit(plan, self.queues.by_id)

    def commit(self, plan: Plan, sampled: SamplerOutput) -> list[RequestOutput]:
        """Records what the worker sampled for ``plan``, the first of those in flight."""
        steps = self.queues.steps
        steps.land(plan, self.queues.by_id)
        outputs = self._results.record(plan, sampled, steps.landed)
        if self._drafts.feeding:
            steps.correct(self.queues.by_id)
        self.queues.settle()
        return outputs

    def update(self, plan: Plan, sampled: SamplerOutput) -> list[RequestOutput]:
        """``advance`` and ``commit`` in one, where no step is ever planned while another is in flight."""
        return self._results.record(plan, sampled, self.queues.steps.landed + 1)

    def abandon(self, plan: Plan, *, launched: bool = False) -> None:
        """``plan`` came to nothing: it can be made again. What the worker did of it may have changed states; if it was
        ``launched``, adapters are in their slots."""
        if self.adapters is not None and not launched:
            self.adapters.undo(plan.swaps)
        if self._states is not None:
            self._distrust()
            planned = {one.request_id for one in plan.requests}
            targets = {target for _, target in plan.state_copies}
            self.queues.spoil([one for one in self.running if one.id in planned or one.state in targets])

    def retract(self) -> None:
        """The steps in flight had no effect but on states, and can be planned again."""
        if self._states is not None:
            self._distrust()
            self.queues.spoil([request for request in self.running if request in self.queues.steps])
        self.queues.steps.retract(self.running)
        self.queues.settle()

    def _distrust(self) -> None:
        """A plan's copies of states may not have been made."""
        if self._checkpoints is not None:
            self._checkpoints.clear(self.running)

    def dropped(self, plan: Plan) -> set[int]:
        """Requests whose samples in ``plan``, the first of those in flight, do not count any more."""
        return self.queues.steps.dropped(plan, self.queues.by_id)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless blocks, requests and queues agree about who holds and wants what."""
        self._tables.check_integrity((*self.running, *self.queues.steps.ended))
        if self.tiers is not None:
            self.tiers.check_integrity()
        if self.pins is not None:
            self.pins.check_integrity()
        if self.adapters is not None:
            self.adapters.check_integrity(self.running)
        self._forks.check_integrity(self.queues.by_id)
        self.queues.check_integrity()

    def _most_requests(self) -> int:
        """In a step: with a pipeline their part of all, so that each stage has something to do."""
        if self._stages == 1:
            return self.queues.max_num_seqs
        open_ = len(self.running) + min(len(self.waiting), self.queues.free_slots)
        return max(1, -(-open_ // self._stages))

    def _expire(self, plan: Plan) -> None:
        """Drops requests whose deadline passed before they ever ran; a preempted one has begun its answer."""
        for request, seconds in self.intake.expired():
            plan.expired.append((request.id, seconds))
            for sibling in list(request.siblings):
                self.abort(sibling.id)
            self.abort(request.id)
