"""The loop of the engine process: receive messages, have a step computed, send one message."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from dataclasses import replace

from engine.adapter_loading import AdapterLoading
from engine.bootstrap import LoadedEngine, collect, load_engine
from engine.channel import Bell, Channel
from engine.config import EngineConfig
from engine.core.plan import Plan
from engine.core.request import Request
from engine.errors import ContextLengthExceeded, DeadlineUnreachable, OutOfMemory, QueueFull, StartupError
from engine.handover.role import Handover
from engine.messages import (
    Abort,
    LoadAdapter,
    Outputs,
    Park,
    Refusal,
    Sleep,
    SleepDone,
    Step,
    Submit,
    UnloadAdapter,
    Unpark,
    Wake,
)
from engine.refusals import to_refusal
from engine.step_loop import Landed, StepLoop

log = logging.getLogger("engine.process")

_DIGEST_SIZE = 64
"""Cached prefixes that the HTTP process learns of."""
_DIGEST_INTERVAL = 1.0
"""Seconds."""
_COMPILE_POLL = 0.002
"""Seconds between two checks whether a grammar is compiled, where nothing else is to be done."""
_LOAD_POLL = 0.01
"""Seconds to wait at a time for blocks that are copied between tiers of memory."""
_IDLE_CHECK = 1.0
"""Seconds without requests after which the block pool's integrity is checked."""


class EngineCore:
    def __init__(self, config: EngineConfig, channel: Channel) -> None:
        """Loads the model. Raises ``StartupError``."""
        self._config = config
        self._channel = channel
        self._bell: Bell | None = None
        """Rung when blocks come from another engine, or one asks for some."""
        if config.role is not None:
            self._bell = Bell()
            channel.add(self._bell)
        self._adapter_bell: Bell | None = None
        """Rung when an adapter was read."""
        if config.slots:
            self._adapter_bell = Bell()
            channel.add(self._adapter_bell)
        loaded = self._load(config)
        self.ready = loaded.ready
        self._take_up(loaded)
        self._asleep = 0
        """The level of sleep; 0: awake."""
        self._check_integrity = config.check_integrity
        self._compiling: dict[int, tuple[Submit, Future[object]]] = {}
        """Requests that wait for their grammars."""
        self._refusals: list[Refusal] = []
        self._queued: list[tuple[int, float]] = []
        """By request that was scheduled for the first time: seconds that it had waited. Both are to be sent with the
        next message."""
        self._out_of_memory = 0
        """Steps that were abandoned."""
        self._digest_due = 0.0
        self._changed = False
        """Whether the HTTP process has not seen the latest state yet."""

    def _load(self, config: EngineConfig) -> LoadedEngine:
        return load_engine(
            config,
            self._bell.ring if self._bell is not None else None,
            self._adapter_bell.ring if self._adapter_bell is not None else lambda: None,
        )

    def _take_up(self, loaded: LoadedEngine) -> None:
        self._runner = loaded.runner
        self._scheduler = loaded.scheduler
        self._steps = StepLoop(
            loaded.scheduler,
            loaded.runner,
            ahead=loaded.ahead,
            plan=self._plan,
            stages=loaded.runner.ranks.stages,
        )
        self._prefill_chunks = loaded.prefill_chunks
        self._handover = loaded.handover
        self._adapters = AdapterLoading(loaded.adapters, self._scheduler, self._channel.send)

    def run(self) -> None:
        """Until the HTTP process is gone: then raises ``EOFError``."""
        try:
            self._run()
        finally:
            if self._handover is not None:
                self._handover.close()

    def _run(self) -> None:
        while True:
            if self._asleep:
                for message in self._channel.receive(None):
                    if isinstance(message, Wake):
                        self._wake()
                continue
            self._submit_compiled()
            if self._handover is not None:
                self._hand_over(self._handover)
            if self._adapter_bell is not None:
                self._adapter_bell.hush()
                self._refuse(self._adapters.tick())
            idle = self._scheduler.idle and not self._steps.in_flight
            timeout = _COMPILE_POLL if self._compiling else _IDLE_CHECK
            if self._scheduler.copying:
                timeout = min(timeout, _LOAD_POLL)
            for message in self._channel.receive(timeout if idle else 0.0):
                self._handle(message)
            if self._asleep:
                continue
            if not self._scheduler.idle or self._steps.in_flight:
                self._step()
            elif self._changed:
                self._send(Landed(Plan()))
            elif self._scheduler.copying:
                # All of what was computed goes to the disk, if nobody else has use for the time.
                self._scheduler.copy()
                self._changed = not self._scheduler.copying
            elif idle and not self._compiling:
                self._scheduler.check_integrity()
                if self._runner.grammars is not None:
                    self._runner.grammars.read_ahead()
                waiting = self._handover is not None and self._handover.busy
                for message in self._channel.receive(_IDLE_CHECK if waiting else None):
                    self._handle(message)

    def _hand_over(self, handover: Handover) -> None:
        if self._bell is not None:
            self._bell.hush()
        before = replace(handover.state)
        handover.tick()
        self._changed = self._changed or handover.state != before

    def _refuse(self, refusals: list[Refusal]) -> None:
        self._refusals += refusals
        self._changed = self._changed or bool(refusals)

    @property
    def _has_tiers(self) -> bool:
        return bool(self._config.host_kv_memory) or self._config.disk_kv is not None

    def _sleep(self, level: int) -> None:
        if not self._scheduler.idle or self._steps.in_flight or self._compiling:
            self._channel.send(SleepDone("Requests are open: a model sleeps once they have ended."))
        elif self._runner.ranks.size > 1 or self._runner.adapters is not None or self._has_tiers:
            # Ranks would each have to, adapters that were loaded meanwhile would be lost, and copies of blocks to other
            # tiers may be under way.
            self._channel.send(
                SleepDone(
                    "A model with --tensor-parallel, --pipeline-parallel, adapters, --host-kv-memory or --disk-kv "
                    "does not sleep."
                )
            )
        else:
            self._scheduler.forget_all()
            self._scheduler.check_integrity()
            if level == 1 and self._runner.device.type == "cpu":
                from engine.worker.sleep import give_back

                give_back(self._runner.cache)
            else:
                level = 2
                del self._runner, self._scheduler, self._steps, self._adapters, self._prefill_chunks
            collect()
            self._asleep = level
            self._channel.send(SleepDone())

    def _wake(self) -> None:
        if self._asleep == 1:
            from engine.worker.sleep import take_back

            take_back()
        else:
            # As large as at the first time, which the HTTP process knows of.
            same = replace(
                self._config,
                kv_cache_blocks=self.ready.blocks,
                kv_cache_memory=None,
                max_model_len=self.ready.max_model_len,
            )
            try:
                self._take_up(self._load(same))
            except StartupError as error:
                self._channel.send(SleepDone(error.message))
                return
            collect()
        self._asleep = 0
        self._changed = True
        self._channel.send(SleepDone())

    def _handle(
        self, message: Submit | Abort | Park | Unpark | LoadAdapter | UnloadAdapter | Sleep | Wake
    ) -> None:
        self._changed = True
        match message:
            case Submit():
                self._prepare(message)
            case Abort(request_ids):
                for request_id in request_ids:
                    self._compiling.pop(request_id, None)
                    self._scheduler.abort(request_id)
            case Park(request_ids):
                for request_id in request_ids:
                    self._scheduler.park(request_id)
            case Unpark(request_ids):
                for request_id in request_ids:
                    self._scheduler.unpark(request_id)
            case LoadAdapter(key, folder):
                self._adapters.load(key, folder)
            case UnloadAdapter(key):
                self._adapters.unload(key)
            case Sleep(level):
                self._sleep(level)
                return
            case Wake():
                self._channel.send(SleepDone())
        self._adapters.unload_unused()

    def _prepare(self, message: Submit) -> None:
        """Submits it, after its grammar is compiled if that is new; other requests go on meanwhile."""
        grammars, grammar = self._runner.grammars, message.params.grammar
        compiling = grammars.prepare(grammar) if grammars and grammar else None
        if compiling is None:
            self._submit(message)
        elif len(self._compiling) >= self.ready.max_waiting:
            self._refusals.append(to_refusal(message.request_id, QueueFull(len(self._compiling))))
        else:
            self._compiling[message.request_id] = message, compiling

    def _submit_compiled(self) -> None:
        for request_id, (message, compiling) in list(self._compiling.items()):
            if compiling.done():
                del self._compiling[request_id]
                self._changed = True
                self._submit(message)

    def _submit(self, message: Submit) -> None:
        if message.adapter is not None and message.adapter not in self._adapters:
            self._refusals.append(Refusal(message.request_id, "ModelNotFound"))
            return
        request = Request(
            message.request_id,
            message.prompt,
            message.params,
            priority=message.priority,
            submitted=message.submitted,
            deadline=message.deadline,
            weight=message.weight,
            adapter=message.adapter,
            tenant=message.tenant,
            salt=message.salt,
            shared=message.shared,
            siblings=message.siblings,
            pin=message.pin,
            prefill_at=message.prefill_at,
        )
        try:
            self._scheduler.submit(request)
        except (QueueFull, ContextLengthExceeded, DeadlineUnreachable) as error:
            self._refusals.append(to_refusal(message.request_id, error))

    def _plan(self) -> Plan:
        now = time.monotonic()
        self._scheduler.prefill_chunk = self._prefill_chunks.chunk(self._scheduler.num_prefills)
        plan = self._scheduler.schedule()
        requests = self._scheduler.queues.by_id
        self._queued += [(request_id, now - requests[request_id].submitted) for request_id in plan.admitted]
        for request_id, needed in plan.expired:
            self._refusals.append(to_refusal(request_id, DeadlineUnreachable(needed, 0.0)))
        return plan

    def _step(self) -> None:
        landed = self._steps.step()
        if landed is None:
            if self._scheduler.queues.loading:
                if self._handover is not None:
                    self._channel.wait(_LOAD_POLL)
                else:
                    self._scheduler.wait(_LOAD_POLL)
            elif self._adapters.reading:
                self._channel.wait(_LOAD_POLL)
            elif not self._scheduler.idle:
                raise RuntimeError("there are requests, but none of them can run")
            self._send(Landed(Plan()))
            return
        if landed.error is not None:
            self._abandon(landed.plan, landed.error)
            self._send(Landed(Plan()))
            return
        for request_id, reason in landed.failed.items():
            self._refusals.append(Refusal(request_id, "GrammarFailed", reason=reason))
        self._send(landed)
        if self._check_integrity:
            self._scheduler.check_integrity()
        self._adapters.unload_unused()

    def _abandon(self, plan: Plan, error: OutOfMemory) -> None:
        """The step had no effect. The next is half as large; where it cannot be, a request is refused: one without
        an answer to lose if there is any, of those the one that would compute most, of equals the last."""
        scheduler = self._scheduler
        self._out_of_memory += 1
        smaller = max(scheduler.max_num_seqs, plan.tokens // 2)
        if smaller < plan.tokens and smaller < scheduler.max_batched_tokens:
            log.warning(
                "a step of %d tokens ran out of memory: from now on steps have %d at most (--max-batched-tokens): %s",
                plan.tokens,
                smaller,
                error.message,
            )
            scheduler.max_batched_tokens = smaller
        else:
            _, largest = max(
                enumerate(plan.requests),
                key=lambda one: (len(one[1].history) == one[1].prompt_length, len(one[1].tokens), one[0]),
            )
            log.warning(
                "a step ran out of memory: request %d is refused: %s", largest.request_id, error.message
            )
            for request_id in (*(sibling.id for sibling in largest.siblings), largest.request_id):
                scheduler.abort(request_id)
                self._refusals.append(Refusal(request_id, "OutOfMemory", reason=error.reason))

    def _send(self, landed: Landed) -> None:
        plan, seconds = landed.plan, landed.seconds
        scheduler = self._scheduler
        # A preempted request that comes back computes its answer so far like a prompt.
        decoded = sum(
            len(scheduled.tokens)
            for scheduled in plan.requests
            if scheduled.generating and len(scheduled.tokens) == scheduled.num_draft_tokens + 1
        )
        prefilled = plan.tokens - decoded
        scheduler.latency.observe(seconds, prefill_tokens=prefilled, decode_tokens=decoded)
        self._prefill_chunks.observe(seconds, prefill_tokens=prefilled, decode_tokens=decoded)
        speculation = self._runner.speculation
        step = Step(
            seconds=seconds,
            sequences=len(plan.requests),
            prefill_tokens=prefilled,
            decode_tokens=decoded,
            preempted=len(plan.preempted),
            running=len(scheduler.running),
            waiting=scheduler.num_waiting,
            parked=len(scheduler.parked),
            waiting_by_priority=dict(scheduler.waiting_by_priority),
            blocks_free=scheduler.pool.free,
            blocks_cached=scheduler.pool.cached,
            queued=self._queued,
            hit_tokens=plan.hit_tokens,
            prefix_queries=plan.prefix_queries,
            prefix_hits=plan.prefix_hits,
            proposed=speculation.proposed if speculation else 0,
            accepted=speculation.accepted if speculation else 0,
            compilations=self._runner.compilations.count,
            out_of_memory=self._out_of_memory,
            blocks_pinned=len(scheduler.pins or ()),
            loading=len(scheduler.queues.loading),
            adapters=self._adapters.state,
            tiers=scheduler.tiers.state if scheduler.tiers is not None else None,
            handover=self._handover.state if self._handover is not None else None,
            prefixes=self._digest(),
        )
        self._channel.send(Outputs(landed.outputs, self._refusals, step))
        self._refusals, self._queued = [], []
        self._changed = False

    def _digest(self) -> list[tuple[int, int, str]] | None:
        now, prefixes, tiers = time.monotonic(), self._scheduler.prefixes, self._scheduler.tiers
        if prefixes is None or now < self._digest_due:
            return None
        self._digest_due = now + _DIGEST_INTERVAL
        found = [(key, tokens, "") for key, tokens in prefixes.digest(_DIGEST_SIZE)]
        if tiers is not None:
            known = {key for key, _, _ in found}
            found += [one for one in tiers.digest(_DIGEST_SIZE) if one[0] not in known]
        return found
