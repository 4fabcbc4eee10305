"""A backend in simulated time: it takes as long as its ``ServiceTimes`` say, and fails where it did."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import httpx

from gateway.backends import fitting
from gateway.backends.exchange import late
from gateway.backends.openai_errors import Outage, from_response, from_transport
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import GatewayError, Upstream, UpstreamFailed
from gateway.lab.replay.faults import Fault
from gateway.lab.replay.prompts import CHARACTERS, Asked
from gateway.lab.replay.service_times import Services, ServiceTimes
from gateway.policy.schema import Target
from gateway.recording.recorded_request import RecordedRequest
from gateway.types import Call, Chunk, Chunks, Usage

PIECE = 256
"""Tokens after which an answer's pace is set anew, by the load."""
FOREVER = 10.0**8
A_REFUSAL = 0.05
"""Seconds that a server takes to answer with an error."""
UNREACHABLE = "upstream_unavailable"
TIMED_OUT = "upstream_timeout"


class PrefixCache:
    """The prompt cache of a backend, in blocks, of which the least recently used go first."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._used = 0
        self._known: OrderedDict[int, int] = OrderedDict()

    def cached(self, blocks: Sequence[int], each: int) -> int:
        """Tokens of a prompt that it has; from now on it has all of them."""
        known, found, begins = self._known, 0, True
        for block in blocks:
            if block in known:
                known.move_to_end(block)
                found += each if begins else 0
                continue
            begins = False
            known[block] = each
            self._used += each
        while self._used > self._tokens:
            self._used -= known.popitem(last=False)[1]
        return found


@dataclass(slots=True)
class World:
    """What all backends of one replay share."""

    services: Services
    asked: dict[str, Asked]
    """What is in flight, by request id."""
    faults: Mapping[str, Sequence[Fault]]
    usual_answer: Mapping[str, int]
    """Tokens of an answer that was not recorded, by the model that was asked for; of others by ``""``."""
    cache_tokens: int
    """That a backend's prompt cache holds; 0: it has none."""
    without_cache: Collection[str] = ()
    """Backends that have none."""

    def of(self, call: Call) -> Asked:
        found = self.asked.get(call.request_id)
        return found if found is not None else self.asked[call.request_id.removesuffix("-shadow")]

    def answer_tokens(self, one: RecordedRequest) -> int:
        """A refused request would have had an answer; one that was left or broken off had a longer one."""
        usual = self.usual_answer.get(one.model, self.usual_answer[""])
        if one.outcome == "completed":
            return one.completion_tokens
        return max(one.completion_tokens, usual)


class ReplayBackend:
    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self._world = world
        self._outage = Outage()
        self._faults = world.faults.get(name, ())
        has_cache = world.cache_tokens > 0 and name not in world.without_cache
        self._prefixes = PrefixCache(world.cache_tokens) if has_cache else None
        self._times: dict[str, ServiceTimes] = {}
        self.in_flight = 0
        self.most = 0
        """That were in flight at once."""

    async def stream(self, call: Call, target: Target) -> Chunks:
        asked = self._world.of(call)
        if self._faults and (error := self._out()) is not None:
            if error.upstream_status is not None:
                call.leaves()
                await asyncio.sleep(A_REFUSAL)
            raise error
        one = asked.record
        failing = one.outcome == "failed" and one.backend == self.name
        if failing and one.code == UNREACHABLE:
            await asyncio.sleep(one.since_sent(one.duration) or 0.0)
            raise self._error(None)
        call.leaves()
        load = self.in_flight
        self.in_flight = load + 1
        if load >= self.most:
            self.most = load + 1
        try:
            if failing:
                await self._fail(call, one)
            self._outage.over()
            async for chunk in self._answer(call, target, asked, load):
                yield chunk
        finally:
            self.in_flight -= 1

    async def _answer(self, call: Call, target: Target, asked: Asked, load: int) -> Chunks:
        one, request = asked.record, call.request
        times = self._times.get(target.model) or self._times_of(target.model)
        cached = self._cached(one)
        if request.embeds:
            await asyncio.sleep(times.to_first(one.prompt_tokens, load))
            usage = Usage(one.prompt_tokens, 0)
            yield Chunk(delta={"embedding": []}, finish_reason="stop", usage=usage)
            return
        tokens, cut = self._world.answer_tokens(one), False
        cap = self._cap(call)
        if cap is not None and cap < tokens:
            tokens, cut = cap, True
        first = times.to_first(one.prompt_tokens - cached, load)
        rest = times.between(load) * (tokens - 1 if tokens > 1 else 0)
        clock = self._clock(call, first, rest)
        try:
            if not request.stream:
                await self._pause(first + rest, clock)
                yield Chunk(delta={"role": "assistant", "content": f"x {asked.answer}"})
            else:
                await self._pause(first, clock)
                begins = "y" if self._diverges(one, target) else "x"
                yield Chunk(delta={"role": "assistant", "content": f"{begins} {asked.answer}"})
                if one.outcome == "failed" and one.backend == self.name:
                    raise self._cut()
                if clock is None and not (times.token_load or asked.left):
                    await asyncio.sleep(rest)
                else:
                    async for chunk in self._rest(tokens - 1, times, clock, told=asked.left):
                        yield chunk
        finally:
            if clock is not None:
                clock.close()
        reason = "length" if cut else one.finish_reason or "stop"
        usage = Usage(
            one.prompt_tokens, tokens, min(cached, one.prompt_tokens), min(one.reasoning_tokens, tokens)
        )
        yield Chunk(delta={}, finish_reason=reason, usage=usage)

    @property
    def targets(self) -> Sequence[str]:
        """The models that were asked here."""
        return [*self._times]

    def _times_of(self, model: str) -> ServiceTimes:
        times, _ = self._world.services.of(self.name, model)
        self._times[model] = times
        return times

    def _cached(self, one: RecordedRequest) -> int:
        """Tokens of its prompt that this backend has."""
        if one.blocks and self._prefixes is not None:
            return min(one.prompt_tokens, self._prefixes.cached(one.blocks, one.block_tokens))
        return one.cached_tokens

    def _diverges(self, one: RecordedRequest, target: Target) -> bool:
        """Whether a caller has the beginning of an answer that broke off elsewhere, and another model gives its own."""
        begun = one.outcome == "failed" and one.ttft is not None and one.backend != self.name
        return begun and one.target != target.model

    def _cap(self, call: Call) -> int | None:
        """The longest answer that is asked of the server."""
        here = call.candidate
        if here is None:
            return None
        model = call.policy.models[here.model]
        if (
            call.cap is None
            and not call.request.params
            and model.max_output is None
            and model.context is None
        ):
            return None
        params = fitting.fitted(call).params
        cap = params.get("max_completion_tokens") or params.get("max_tokens")
        return cap if isinstance(cap, int) else None

    async def _rest(
        self, tokens: int, times: ServiceTimes, clock: UpstreamTimeouts | None, *, told: bool
    ) -> Chunks:
        """Their time passes, at the pace of the moment; with ``told`` they come, too."""
        while tokens > 0:
            piece = min(tokens, PIECE)
            seconds = piece * times.between(self.in_flight - 1)
            if clock is None:
                await asyncio.sleep(seconds)
            else:
                clock.progress()
                step = clock.limits.idle / 2  # a token comes long before the server has fallen silent
                while seconds > 0:
                    await self._pause(min(step, seconds), clock)
                    clock.progress()
                    seconds -= step
            tokens -= piece
            if told and tokens > 0:
                yield Chunk(delta={"content": "x" * (CHARACTERS * piece)})

    def _clock(self, call: Call, first: float, rest: float) -> UpstreamTimeouts | None:
        """What ends a real answer that takes too long; None for one that is far from that."""
        limits, whole = call.timeouts, first + rest
        at_once = not (call.request.stream or limits.bounds_silence)
        silence = limits.total if at_once else limits.first_token
        in_time = first < silence and (whole if at_once else 2 * whole) < limits.total
        if in_time and (call.deadline is None or time.perf_counter() + 2 * whole < call.deadline):
            return None
        return UpstreamTimeouts(limits, at_once=at_once, deadline=call.deadline)

    async def _pause(self, seconds: float, clock: UpstreamTimeouts | None) -> None:
        """Raises ``GatewayError`` where the clock ends it."""
        if clock is None:
            await asyncio.sleep(seconds)
            return
        try:
            with clock:
                await asyncio.sleep(seconds)
        except TimeoutError:
            raise late(self.name, clock) from None

    def _out(self) -> GatewayError | None:
        now = time.time()
        for fault in self._faults:
            if fault.begin <= now < fault.end:
                return self._error(fault.status)
        return None

    def _error(self, status: int | None) -> GatewayError:
        if status is None:
            return from_transport(self.name, httpx.ConnectError("out"), self._outage)
        error = from_response(self.name, status, {}, b'{"error": {"message": "as recorded"}}', self._outage)
        if isinstance(error, Upstream):
            error.upstream_status = status  # as a server's refusal, which costs nothing
        return error

    async def _fail(self, call: Call, one: RecordedRequest) -> None:
        """As it did here when it was recorded; one that had begun an answer begins it again."""
        if one.ttft is not None:
            return
        if one.code == TIMED_OUT:
            clock = self._clock(call, FOREVER, 0.0)
            try:
                await self._pause(FOREVER, clock)
            finally:
                if clock is not None:
                    clock.close()
        await asyncio.sleep(one.since_sent(one.duration) or A_REFUSAL)
        raise self._error(one.status if one.status >= 500 or one.status == 429 else 500)

    def _cut(self) -> UpstreamFailed:
        return UpstreamFailed(
            f"Backend '{self.name}' broke off in the middle of its answer.", code="upstream_cut"
        )

    async def probe(self) -> None:
        """It is always there."""

    async def aclose(self) -> None:
        """Nothing is held."""
