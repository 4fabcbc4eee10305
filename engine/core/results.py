"""What steps sampled, as requests take it: tokens, ends, choices that begin."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.core.block_tables import BlockTables
from engine.core.forks import Forks
from engine.core.intake import Intake
from engine.core.pins import Pins
from engine.core.plan import Plan, RequestOutput, SamplerOutput
from engine.core.prefix_cache import Node
from engine.core.request import FinishReason, Request
from engine.core.request_queues import RequestQueues


class Results:
    def __init__(
        self,
        queues: RequestQueues,
        tables: BlockTables,
        forks: Forks,
        intake: Intake,
        *,
        drafting: bool,
        pins: Pins | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = queues
        self._tables = tables
        self._forks = forks
        self._intake = intake
        self._drafting = drafting
        self._pins = pins
        self._clock = clock

    def record(self, plan: Plan, sampled: SamplerOutput, number: int) -> list[RequestOutput]:
        """``number``: the step's."""
        outputs: list[RequestOutput] = []
        requests, steps, tables = self._queues.by_id, self._queues.steps, self._tables
        for scheduled in plan.requests:
            request = requests.get(scheduled.request_id)
            if request is None or request.void >= number:
                continue
            request.computed = scheduled.start + len(scheduled.tokens) - scheduled.num_draft_tokens
            if scheduled.prompt_logprobs is not None and request.prompt_logprobs is not None:
                # A preempted request computes some of its prompt again.
                known = len(request.prompt_logprobs) - scheduled.start
                request.prompt_logprobs += sampled.prompt_logprobs[request.id][known:]
            if sampled.deferred and not sampled.deferred.isdisjoint(
                (request.id, *(sibling.id for sibling in request.siblings))
            ):
                request.computed -= 1
                steps.void(request)
                continue
            if scheduled.sampling is None:
                if request.computed >= request.boundary:
                    tables.learn(request)
                continue
            output = self._output(request, sampled)
            outputs.append(output)
            finish = output.finish
            if scheduled.num_draft_tokens:
                # All that was kept but the last are draft tokens that were accepted, and so may the last be if the
                # request ends with it.
                request.computed += min(len(output.tokens), len(sampled.tokens[request.id]) - 1)
            if self._drafting:
                request.draft_tokens = sampled.draft_tokens.get(request.id, [])
                request.draft_parents = sampled.draft_parents.get(request.id, [])
            if request.computed >= request.boundary:
                tables.learn(request)
            if not scheduled.generating:
                tables.mark(request)
            forks = self._forks.begin(request) if request.siblings else []
            for fork in forks:
                tables.share(request, fork)
            if finish is not None:
                self._finish(request)
            for fork in forks:
                self._queues.open(fork)
                outputs.append(self._output(fork, sampled))
                self._start_fork(fork, outputs[-1].finish)
        return outputs

    def _output(self, request: Request, sampled: SamplerOutput) -> RequestOutput:
        tokens, finish = request.extend(sampled.tokens[request.id])
        logprobs = sampled.logprobs.get(request.id) if sampled.logprobs else None
        output = RequestOutput(
            request.id,
            tokens,
            finish,
            logprobs and logprobs[: len(tokens)],
            request.cached,
            request.prompt_logprobs,
        )
        request.cached, request.prompt_logprobs = 0, None
        return output

    def _start_fork(self, fork: Request, finish: FinishReason | None) -> None:
        """It runs if there is a slot, else it waits as if preempted."""
        self._queues.run(fork)
        if finish is not None:
            self._finish(fork)
        elif len(self._queues.running) > self._queues.max_num_seqs or self._tables.lacks_state(fork):
            self._queues.requeue(fork)

    def _finish(self, request: Request) -> None:
        self._intake.learn(request)
        self._tables.mark(request)
        if request.pin and self._pins is not None and request.chain is not None and request.chain.alive:
            self._pin(request, self._pins, request.chain)
        self._queues.ended.append(request.id)
        self._queues.forget(request)
        self._queues.remove(request)

    def _pin(self, request: Request, pins: Pins, node: Node) -> None:
        """The full blocks of its prompt."""
        depth = request.prompt_length // self._tables.block_size
        while node.parent is not None and node.depth > depth:
            node = node.parent
        pins.pin(node, request.tenant, self._clock() + request.pin)
