"""From a call to its model's answer: candidate after candidate, until the caller has a whole one.

    plan ─► candidate ─► permit ─► place ─► hold ─► send ─► read ─► end
                ▲         breaker   queue   limits                  │
                └──────── what failed, and what that leads to ◄─────┘

The text of an answer passes as it is; what has come of one that failed is continued by another (``gateway.fallback``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType

from gateway.admission.gate import Admission, engine_headers
from gateway.admission.phases import Headers
from gateway.admission.queue import Queue
from gateway.errors import BadRequest, GatewayError, Overloaded, RateLimited, Upstream
from gateway.fallback.attempt import Attempt
from gateway.fallback.failover import Failover
from gateway.fallback.hop import Hops
from gateway.observe.metrics import Metrics
from gateway.observe.prometheus.buffers import BufferedCounter
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.routing.affinity import target_name
from gateway.routing.router import Router
from gateway.types import Call, Chunk, Chunks, Handler, WholeHandler

NAMED = 64
"""Candidates that a receipt tells: nobody reads on, and a thousand names are thirty kilobytes."""


class UpstreamLoop:
    """A ``Handler``. What ``queue`` and ``hops`` know of health and load outlives the policy; ``send`` asks the call's
    target.
    """

    def __init__(
        self,
        router: Router,
        hops: Hops,
        queue: Queue,
        send: Handler,
        send_whole: WholeHandler,
        metrics: Metrics,
        telemetry: Telemetry | None = None,
        headers: Headers = engine_headers,
    ) -> None:
        """``headers``: of what goes to engines."""
        self._router = router
        self._hops = hops
        self._queue = queue
        self._send = send
        self._send_whole = send_whole
        self._metrics = metrics
        self._telemetry = telemetry
        self._engine_headers = headers

    def __call__(self, call: Call) -> Chunks:
        if call.trace is not None:
            call.enters("route")
        try:
            self._plan(call)
        except GatewayError as error:
            return _failing(error)
        return self.attempts(call)

    def _plan(self, call: Call) -> None:
        plan = self._router.plan(call)
        first = plan[0]
        call.candidates = plan
        call.candidate = first
        call.receipt.note(
            "route", model=first.model, candidates=[target_name(one) for one in plan[:NAMED]], why=first.why
        )

    async def whole(self, call: Call) -> Sequence[Chunk]:
        """The answer to a call whose request ``is_whole``, of the first attempt that gives all of it."""
        self._plan(call)
        first = call.candidate
        failover = Failover(call, self._hops, self._metrics, self._telemetry, self._router.deferred)
        try:
            while True:
                attempt = failover.next_attempt()
                failover.started(attempt)
                try:
                    chunks = await self._whole(attempt)
                except BaseException as error:
                    if not failover.ended(attempt, error):
                        raise
                else:
                    failover.delivers(attempt)
                    failover.ended(attempt, None)
                    break
                await failover.pause()
            if call.candidate is not first and self._router.has_affinity:
                self._router.record_served(call)
            return chunks
        except (Upstream, RateLimited, Overloaded, BadRequest) as error:
            if (instead := failover.instead(error)) is not None:
                raise instead from None
            error.__traceback__ = None
            raise
        finally:
            failover.end()

    async def _whole(self, attempt: Attempt) -> Sequence[Chunk]:
        """The whole answer of one attempt, or what it fails with."""
        call = attempt.call
        admission = self._queue.admit(call)
        in_flight: BufferedCounter | None = None
        try:
            if not admission.lease.is_granted:
                await self._queue.wait(call, admission)
            in_flight = await self._hold(attempt, admission)
            chunks = await self._send_whole(call)
            for chunk in chunks:
                attempt.count(chunk)
            _complete(attempt, admission, None)
            return chunks
        finally:
            _give_back(attempt, admission, in_flight)

    def attempts(self, call: Call) -> Chunks:
        """At the candidates that ``call`` has."""
        chunks = self._attempts(call)
        call.relays(chunks)
        return chunks

    async def _attempts(self, call: Call) -> Chunks:
        failover = Failover(call, self._hops, self._metrics, self._telemetry, self._router.deferred)
        first = call.candidate
        try:
            while not failover.answered:
                attempt = failover.next_attempt()
                async with _Running(failover, attempt) as running:
                    admission = self._queue.admit(attempt.call)
                    running.admission = admission
                    if not admission.lease.is_granted:
                        async with aclosing(self._queue.waiting(attempt.call, admission)) as positions:
                            async for position in positions:
                                yield position
                    running.chunks = chunks = await self._sent(attempt, running, admission)
                    first_token: float | None = None
                    stream = attempt.filter
                    async for chunk in chunks:
                        if first_token is None and chunk.delta is not None:
                            first_token = admission.first_token(attempt.call)
                        if chunk.finish_reason is not None:
                            admission.lease.release_one()
                        if stream.passthrough or failover.opens(attempt, chunk):
                            attempt.add(chunk)
                            yield chunk
                            continue
                        for ready in failover.filtered(attempt, chunk):
                            yield ready
                    running.complete(first_token)
                    for ready in stream.end():
                        failover.delivers(attempt)
                        yield ready
                if not failover.answered:
                    await failover.pause()
            if call.candidate is not first and self._router.has_affinity:
                self._router.record_served(call)
        except (Upstream, RateLimited, Overloaded, BadRequest) as error:
            if (instead := failover.instead(error)) is not None:
                raise instead from None
            # Their way through the frames below is of no use to anybody, and these frames hold the error in turn.
            error.__traceback__ = None
            raise
        finally:
            failover.end()

    async def _sent(self, attempt: Attempt, running: _Running, admission: Admission) -> Chunks:
        """The chunks of an attempt that has its place. Raises what exceeds its caller's limits."""
        call = attempt.call
        running.in_flight = await self._hold(attempt, admission)
        if call.sink is not None:
            call.sink.looking.append(attempt.passed)
        return self._send(call)

    async def _hold(self, attempt: Attempt, admission: Admission) -> BufferedCounter:
        """It is to be sent, and holds what it may use of its caller's limits. Returns who counts it as in flight."""
        call = attempt.call
        if call.allowance is not None:
            call.cap = await call.allowance.hold(call)
        sent = admission.pool.clock()
        if attempt.planned.hop.is_engine:
            call.hints = self._engine_headers(call, sent)
        self._metrics.dispatch_seconds[(call.model,)].observe(sent - call.started)
        in_flight = self._metrics.pool_in_flight[(admission.pool.name,)]
        in_flight.pending += 1
        return in_flight


class _Running:
    """``async with`` an attempt that runs: however it ends, its answer is closed, its place is free again, and what
    it leads to is planned. Errors that another attempt may mend end here. A class, as a generator would cost each
    request three times as much.
    """

    __slots__ = ("_attempt", "_failover", "admission", "chunks", "in_flight")

    def __init__(self, failover: Failover, attempt: Attempt) -> None:
        self._failover = failover
        self._attempt = attempt
        self.admission: Admission | None = None
        self.in_flight: BufferedCounter | None = None
        self.chunks: Chunks | None = None

    async def __aenter__(self) -> _Running:
        self._failover.started(self._attempt)
        return self

    def complete(self, first_token: float | None) -> None:
        """The whole answer has come, which began at ``first_token``, on the pool's clock."""
        if self.admission is not None:
            _complete(self._attempt, self.admission, first_token)
        self._give_back()

    def _give_back(self) -> None:
        admission, self.admission = self.admission, None
        if admission is not None:
            _give_back(self._attempt, admission, self.in_flight)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        closing: BaseException | None = None
        if self.chunks is not None and error is not None:
            try:
                await self.chunks.aclose()
            except BaseException as raised:
                error = closing = raised
        self._give_back()
        if self._failover.ended(self._attempt, error):
            return True
        if closing is not None:
            raise closing
        return False


def _complete(attempt: Attempt, admission: Admission, first_token: float | None) -> None:
    """The whole answer has come, which began at ``first_token``, on the pool's clock."""
    usage = attempt.usage_counter.usage
    admission.completed(attempt.call, first_token, 0 if usage is None else usage.completion)


def _give_back(attempt: Attempt, admission: Admission, in_flight: BufferedCounter | None) -> None:
    """Its place is free again."""
    if in_flight is not None:
        in_flight.pending -= 1
    usage = attempt.usage_counter.usage
    if usage is not None:
        admission.lease.correct_tokens(usage.prompt + usage.completion)
    admission.lease.release()


async def _failing(error: GatewayError) -> Chunks:
    raise error
    yield
