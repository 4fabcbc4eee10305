"""The loop process: drain messages → schedule → execute → update → one message back. ``python -m engine.process FD``

It lives as long as the HTTP process at the other end of the socket: end of file is its order to leave. Signals from
a terminal or a process group go to both; the HTTP process alone decides what they mean.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import time
from concurrent.futures import Future
from pathlib import Path

from engine.channel import Channel
from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, RequestOutput
from engine.core.prefill_chunk import PrefillChunkController
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.errors import (
    ContextLengthExceeded,
    DeadlineUnreachable,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    StartupError,
)
from engine.messages import (
    Abort,
    AdapterDone,
    Failed,
    LoadAdapter,
    Outputs,
    Park,
    Ready,
    Refusal,
    Start,
    Step,
    Submit,
    UnloadAdapter,
    Unpark,
)
from engine.startup import Stopwatch, describe

log = logging.getLogger("engine.process")

_DIGEST = 64
"""Prefixes that the other process is told of."""
_DIGEST_EVERY = 1.0
"""Seconds."""
_COMPILING = 0.002
"""Seconds between two looks at whether a grammar is compiled, where nothing else is to be done."""
_REST = 1.0
"""Seconds without work after which the block pool's integrity is checked."""


class EngineCore:
    def __init__(self, config: EngineConfig, channel: Channel) -> None:
        """Loads the model. Raises ``StartupError``."""
        watch = Stopwatch()
        if config.kernels is not None:
            # Ranks inherit it.
            os.environ["TOLLGATE_KERNELS"] = config.kernels
        # Imported here: nothing else in this module needs torch, and it takes a second.
        from engine.worker.memory import check_room, predict_weights, taken
        from engine.worker.runner import Runner, pick_device, pick_dtype

        self._channel = channel
        device = pick_device(config.device)
        config = config.on(device.type)
        dtype = pick_dtype(config.dtype, config.model, device)
        watch.lap("imports")
        predicted = predict_weights(config.model, dtype, config.quantization)
        # Ranks on a CPU share its memory; on GPUs each has one of its own.
        mine = predicted // config.tensor_parallel if device.type == "cuda" else predicted
        check_room(mine, device, config.quantization)
        before = taken(device)
        self._runner = Runner(config)
        watch.lap("model")
        weights = taken(device) - before
        runner = self._runner
        blocks = runner.cache.blocks
        seats, budget = _steps(config, runner.max_model_len, blocks)
        self._scheduler = Scheduler(
            BlockPool(blocks),
            block_size=config.block_size,
            max_num_seqs=seats,
            max_batched_tokens=budget,
            max_model_len=runner.max_model_len,
            max_waiting=config.max_waiting,
            priority_ageing=config.priority_ageing,
            prefix_caching=config.prefix_caching,
            max_drafts=config.max_drafts if config.speculation != "off" else 0,
            context_caps=config.context_caps,
            chunked_prefill=config.chunked_prefill,
            preemption=config.preemption,
        )
        self._prefill_chunk = PrefillChunkController(config.max_itl_ratio, budget)
        self._check = config.check_integrity
        runner.warm_up()
        watch.lap("warm-up")
        log.info("started in %s", watch)
        memory = {
            "weights_predicted": predicted,
            "weights": weights,
            "kv_cache": blocks * runner.block_bytes,
            "process": taken(device),
        }
        log.info("memory on %s: %s", runner.device, describe(memory))
        self._submitted: dict[int, float] = {}
        self._refusals: list[Refusal] = []
        self._leaving: set[str] = set()
        """Adapters that go when the last request that uses them has ended."""
        self._compiling: dict[int, tuple[Submit, Future[object]]] = {}
        """Requests that wait for their grammars."""
        self._out_of_memory = 0
        """Steps that were given up."""
        self._digest_due = 0.0
        self._news = False
        """Whether something has changed that the other process was not told of."""
        self.ready = Ready(
            max_model_len=runner.max_model_len,
            vocab_size=runner.model.vocab_size,
            block_size=config.block_size,
            blocks=blocks,
            max_num_seqs=seats,
            max_waiting=config.max_waiting,
            device=str(runner.device),
            dtype=str(runner.dtype).removeprefix("torch."),
            context_caps=tuple(sorted(config.context_caps)),
            startup=watch.laps,
            memory=memory,
        )

    def run(self) -> None:
        """Until the other process is gone: then raises ``EOFError``."""
        while True:
            self._submit_compiled()
            idle = self._scheduler.idle
            rest = _COMPILING if self._compiling else _REST
            for message in self._channel.receive(rest if idle else 0.0):
                self._take(message)
            if not self._scheduler.idle:
                self._step()
            elif self._news:
                self._send([], Plan(), 0.0)
            elif idle and not self._compiling:
                self._scheduler.check_integrity()
                for message in self._channel.receive(None):
                    self._take(message)

    def _take(self, message: Submit | Abort | Park | Unpark | LoadAdapter | UnloadAdapter) -> None:
        self._news = True
        match message:
            case Submit():
                self._prepare(message)
            case Abort(request_ids):
                for request_id in request_ids:
                    self._compiling.pop(request_id, None)
                    self._scheduler.abort(request_id)
                    self._submitted.pop(request_id, None)
            case Park(request_ids):
                for request_id in request_ids:
                    self._scheduler.park(request_id)
            case Unpark(request_ids):
                for request_id in request_ids:
                    self._scheduler.unpark(request_id)
            case LoadAdapter(key, folder):
                self._load_adapter(key, folder)
            case UnloadAdapter(key):
                self._leaving.add(key)
        if self._leaving:
            self._unload_adapters()

    def _prepare(self, message: Submit) -> None:
        """A grammar that is new is compiled first, while the others go on."""
        grammars, grammar = self._runner.grammars, message.params.grammar
        compiling = grammars.prepare(grammar) if grammars and grammar else None
        if compiling is None:
            self._submit(message)
        elif len(self._compiling) >= self.ready.max_waiting:
            self._refusals.append(Refusal(message.request_id, "QueueFull", (len(self._compiling),)))
        else:
            self._compiling[message.request_id] = message, compiling

    def _submit_compiled(self) -> None:
        for request_id, (message, compiling) in list(self._compiling.items()):
            if compiling.done():
                del self._compiling[request_id]
                self._news = True
                self._submit(message)

    def _submit(self, message: Submit) -> None:
        if message.adapter is not None and not self._has_adapter(message.adapter):
            self._refusals.append(Refusal(message.request_id, "ModelNotFound", ()))
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
        )
        try:
            self._scheduler.submit(request)
        except QueueFull as error:
            self._refusals.append(Refusal(message.request_id, "QueueFull", (error.waiting,)))
        except ContextLengthExceeded as error:
            figures = (error.prompt_tokens, error.max_tokens or 0, error.limit)
            self._refusals.append(Refusal(message.request_id, "ContextLengthExceeded", figures))
        except DeadlineUnreachable as error:
            self._refuse_late(message.request_id, error.needed, error.allowed)
        else:
            self._submitted[message.request_id] = message.submitted

    def _step(self) -> None:
        began = time.monotonic()
        self._scheduler.prefill_chunk = self._prefill_chunk.chunk(self._scheduler.num_prefills)
        plan = self._scheduler.schedule()
        for request_id, needed in plan.expired:
            self._submitted.pop(request_id, None)
            self._refuse_late(request_id, needed, 0.0)
        if plan.requests:
            try:
                sampled = self._runner.execute(plan)
            except OutOfMemory as error:
                self._relieve(plan, error, began)
                return
            outputs = self._scheduler.update(plan, sampled)
            for request_id, reason in sampled.failed.items():
                # What it gained in this step breaks its form.
                outputs = [output for output in outputs if output.request_id != request_id]
                self._scheduler.abort(request_id)
                self._refusals.append(Refusal(request_id, "GrammarFailed", reason=reason))
            self._send(outputs, plan, began)
            if self._check:
                self._scheduler.check_integrity()
            if self._leaving:
                self._unload_adapters()
        elif self._scheduler.idle:
            self._send([], plan, began)
        else:
            raise RuntimeError("there are requests, but none of them can run")

    def _relieve(self, plan: Plan, error: OutOfMemory, began: float) -> None:
        """Nothing has come of the step. The next is half as large; where it cannot be, a request has to go: the one
        that would compute most, of equals the last."""
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
            _, scheduled = max(enumerate(plan.requests), key=lambda one: (len(one[1].tokens), one[0]))
            log.warning(
                "a step ran out of memory, and request %d goes: %s", scheduled.request_id, error.message
            )
            for request_id in (*(sibling.id for sibling in scheduled.siblings), scheduled.request_id):
                scheduler.abort(request_id)
                self._submitted.pop(request_id, None)
                self._refusals.append(Refusal(request_id, "OutOfMemory", reason=error.reason))
        self._send([], Plan(admitted=plan.admitted), began)

    def _has_adapter(self, key: str) -> bool:
        bank = self._runner.adapters
        return bank is not None and key in bank.loaded and key not in self._leaving

    def _load_adapter(self, key: str, folder: Path) -> None:
        """Between two steps: what runs waits while the files are read."""
        try:
            self._runner.load_adapter(key, folder)
        except InvalidRequest as refused:
            self._channel.send(AdapterDone(key, refused.message))
        except Exception:
            # A folder that nobody thought of must not end the requests that run.
            log.exception("an adapter could not be loaded from %s", folder)
            self._channel.send(AdapterDone(key, "It cannot be read; the engine's log has the details."))
        else:
            self._channel.send(AdapterDone(key))

    def _unload_adapters(self) -> None:
        scheduler = self._scheduler
        users = (*scheduler.running, *scheduler.waiting, *scheduler.parked.values())
        in_use = {request.adapter for request in users}
        for key in self._leaving - in_use:
            self._leaving.remove(key)
            if self._runner.adapters is not None:
                self._runner.unload_adapter(key)
            scheduler.forget_adapter(key)
            self._channel.send(AdapterDone(key))

    def _refuse_late(self, request_id: int, needed: float, allowed: float) -> None:
        figures = (round(needed * 1000), round(allowed * 1000))
        self._refusals.append(Refusal(request_id, "DeadlineUnreachable", figures))

    def _send(self, outputs: list[RequestOutput], plan: Plan, began: float) -> None:
        scheduler = self._scheduler
        # One that comes back after it had to give way computes its answer like a prompt.
        decoded = sum(
            len(scheduled.tokens)
            for scheduled in plan.requests
            if scheduled.generating and len(scheduled.tokens) == scheduled.num_draft_tokens + 1
        )
        seconds = time.monotonic() - began if plan.requests else 0.0
        prefilled = plan.tokens - decoded
        scheduler.latency.observe(seconds, prefill_tokens=prefilled, decode_tokens=decoded)
        self._prefill_chunk.observe(seconds, prefill_tokens=prefilled, decode_tokens=decoded)
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
            queued=[
                began - at for request_id in plan.admitted if (at := self._submitted.pop(request_id, None))
            ],
            hit_tokens=plan.hit_tokens,
            proposed=speculation.proposed if speculation else 0,
            accepted=speculation.accepted if speculation else 0,
            compilations=self._runner.compilations.count,
            out_of_memory=self._out_of_memory,
            prefixes=self._digest(),
        )
        self._channel.send(Outputs(outputs, self._refusals, step))
        self._refusals = []
        self._news = False

    def _digest(self) -> list[tuple[int, int]] | None:
        now = time.monotonic()
        if self._scheduler.prefixes is None or now < self._digest_due:
            return None
        self._digest_due = now + _DIGEST_EVERY
        return self._scheduler.prefixes.digest(_DIGEST)


def _steps(config: EngineConfig, longest: int, blocks: int) -> tuple[int, int]:
    """Seats and tokens of a step, of a configuration for its device."""
    seats, budget = config.max_num_seqs, config.max_batched_tokens
    if seats is None or budget is None:
        raise ValueError("the configuration is for no device yet")
    if not config.preemption:
        seats = max(1, min(seats, blocks * config.block_size // longest))
        if seats < config.max_num_seqs:
            log.warning("without preemption %d KV blocks are enough for %d sequences", blocks, seats)
    if not config.chunked_prefill and budget < longest + seats:
        raise StartupError(
            f"--no-chunked-prefill needs steps that hold the longest prompt beside everybody else's token: give "
            f"--max-batched-tokens {longest + seats} or more, or a smaller --max-model-len than {longest}."
        )
    return seats, budget


def main(fd: int) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=fd))
    try:
        (start,) = channel.receive(None)
        if not isinstance(start, Start):
            raise TypeError(f"the first message must be Start, not {start!r}")
        logging.basicConfig(
            level=start.config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        try:
            core = EngineCore(start.config, channel)
        except StartupError as error:
            channel.send(Failed(error.message))
            return 1
        # What start-up left is here to stay: spare the collector the walk over it.
        gc.collect()
        gc.freeze()
        channel.send(core.ready)
        core.run()
    except EOFError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
