"""One policy's replay: requests arrive when they did, and what becomes of each is noted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

from gateway.errors import GatewayError, RateLimited, Upstream
from gateway.fallback.continuation import AnswerDiverged
from gateway.lab.deciding import Deciding
from gateway.lab.replay import decisions as kinds
from gateway.lab.replay.callers import Callers
from gateway.lab.replay.decisions import NONE, Decisions
from gateway.lab.replay.prompts import ROUTES, Asked, Prompts
from gateway.lab.replay.replay_backend import World
from gateway.lab.replay.simulated_gateway import Adapted, SimulatedGateway
from gateway.observe.outcome import outcome_of, reason_of
from gateway.recording.recorded_request import RecordedRequest
from gateway.types import Call, Receipt

LONGEST_END = 3600.0
"""Seconds after the last arrival in which what is in flight must have ended."""
MOVED = {"downgrade": kinds.DOWNGRADED, "fallback": kinds.REROUTED, "spill_over": kinds.REROUTED}
LARGER = "larger_context"


class _Seen:
    """What comes to a caller."""

    __slots__ = ("cut", "first")

    def __init__(self) -> None:
        self.first = NONE
        """When the answer began."""
        self.cut = False
        """A guard broke it off."""

    async def read(self, gateway: SimulatedGateway | Adapted, call: Call) -> None:
        if gateway.whole is not None and call.request.is_whole:
            await gateway.whole(call)
            self.first = time.perf_counter()
            return
        async with aclosing(gateway.handler(call)) as chunks:
            async for chunk in chunks:
                if chunk.comment is None and self.first != self.first:
                    self.first = time.perf_counter()
                if chunk.revocation is not None:
                    self.cut = True


class Replay:
    """``told`` is called with how many have arrived; ``stream``: whether answers are streamed, None: as recorded."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        world: World,
        callers: Callers,
        deciding: Deciding,
        found: Decisions,
        told: Callable[[int], None] = lambda _: None,
        stream: bool | None = None,
    ) -> None:
        self._gateway = gateway
        self._world = world
        self._callers = callers
        self._deciding = deciding
        self._found = found
        self._told = told
        self._prompts = Prompts(gateway.policy, stream)
        self._lines: dict[Any, str] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """What is in flight, by number. Each takes itself out: a callback of each would be an event of the loop's."""

    async def run(self, requests: Iterable[RecordedRequest], begin: float, speed: float) -> None:
        """``begin``: the arrival of the first, as recorded; ``speed``: of its arrivals."""
        loop, tasks = asyncio.get_running_loop(), self._tasks
        zero = loop.time()
        for number, one in enumerate(requests):
            wait = zero + (one.at - begin) / speed - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            task = tasks[number] = loop.create_task(self._ask(number, one))
            if one.outcome == "cancelled" and one.duration is not None:
                loop.call_later(one.duration, task.cancel)
            if not number % 1000:
                self._told(number)
        if tasks:
            _, late = await asyncio.wait([*tasks.values()], timeout=LONGEST_END)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _ask(self, number: int, one: RecordedRequest) -> None:
        try:
            await self._asked(number, one)
        finally:
            del self._tasks[number]

    async def _asked(self, number: int, one: RecordedRequest) -> None:
        name = str(number)
        if one.request_id:
            self._found.name(number, one.request_id)
        key, tenant, asked = self._callers.names(one)
        values: dict[str, float | int | str] = {"at": one.at, "asked": asked, "prompt": one.prompt_tokens}
        try:
            principal = self._callers.principal(key, tenant, one.tier)
            adapted = self._gateway.adapted(principal, asked)
            model = adapted.model if adapted is not None else self._callers.model(principal, asked)
        except GatewayError as error:  # before it was a call
            values |= {"tenant": tenant, "key": key, "tier": one.tier, "kind": kinds.REFUSED}
            values |= {"status": error.status, "reason": reason_of(error), "waited": NONE, "ttft": NONE}
            self._found.put(number, values)
            return
        marks, in_answer = self._prompts.marks(one) if one.findings else ("", "")
        now = time.perf_counter()
        call = Call(
            name,
            principal,
            self._prompts.request(one, asked, marks, name),
            adapted.policy if adapted is not None else self._gateway.policy,
            Receipt(name, time.time()),
            now,
            headers={"x-request-id": name},
            route=ROUTES[one.api],
            model=model,
            deadline=None if one.deadline is None else now + one.deadline,
        )
        self._world.asked[name] = Asked(one, in_answer, one.outcome == "cancelled")
        seen = _Seen()
        ended_by: BaseException | None = None
        try:
            await seen.read(adapted or self._gateway, call)
        except (GatewayError, AnswerDiverged, asyncio.CancelledError) as error:
            error.__traceback__ = None
            ended_by = error
        finally:
            del self._world.asked[name]
        self._found.put(number, values | self._ended(call, seen, ended_by))

    def _ended(self, call: Call, seen: _Seen, error: BaseException | None) -> dict[str, float | int | str]:
        noted, candidate, started = call.receipt.noted, call.candidate, call.started
        queue = noted.get("queue")
        status, code = (200, None) if error is None else outcome_of(error)
        usage = call.upstream_usage[-1].usage if call.upstream_usage else None
        kind, reason = self._kind(call, noted, error, cut=seen.cut)
        values: dict[str, float | int | str] = {
            "tenant": call.principal.tenant,
            "tier": call.principal.tier,
            "key": call.principal.key_id,
            "waited": queue.get("waited", NONE) if queue is not None else NONE,
            "ttft": seen.first - started,
            "duration": time.perf_counter() - started,
            "cost": self._gateway.bills.of(call),
            "kind": kind,
            "status": status,
            "reason": reason,
            "lines": self._decided(call, noted, status, code),
        }
        if usage is not None:
            values["completion"], values["cached"] = usage.completion, usage.cached
        if candidate is not None:
            values["model"], values["why"] = candidate.model, candidate.why
            values["backend"] = candidate.target.backend
        if (fallback := noted.get("fallback")) is not None:
            values["attempts"] = min(255, len(fallback["attempts"]))
        return values

    def _kind(
        self, call: Call, noted: Mapping[str, Mapping[str, Any]], error: BaseException | None, *, cut: bool
    ) -> tuple[int, str]:
        """And why, in a word or two."""
        if isinstance(error, asyncio.CancelledError):
            return kinds.LEFT, "its caller left"
        if error is not None:
            reason = reason_of(error)
            if reason == "content_policy_violation":
                return kinds.BLOCKED, _guards(noted) or reason
            if isinstance(error, RateLimited) and error.limit is not None:
                return kinds.REFUSED, f"{reason}: {error.limit}"
            # What was asked of a backend and came to nothing failed; all else the gateway itself refused.
            failed = call.receipt.attempts or isinstance(error, Upstream)
            return (kinds.FAILED if failed else kinds.REFUSED), reason
        if cut:
            return kinds.CUT, _guards(noted) or "a guard"
        if call.cached is not None:
            return kinds.CACHED, call.cached
        candidate = call.candidate
        if candidate is None:
            return kinds.ANSWERED, ""
        if candidate.why in MOVED:
            return MOVED[candidate.why], _why_moved(noted, candidate.why)
        if candidate.why == LARGER:
            return kinds.REROUTED, "larger context"
        return kinds.ANSWERED, ""

    def _decided(
        self, call: Call, noted: Mapping[str, Mapping[str, Any]], status: int, code: str | None
    ) -> str:
        """The lines of the policy that decided: worked out once for all requests that are alike."""
        candidate = call.candidate
        queue = noted.get("queue")
        alike = (
            call.model,
            call.principal.key_id,
            call.principal.tier,
            call.cached,
            status,
            code,
            None
            if candidate is None
            else (candidate.model, candidate.target.backend, candidate.target.model),
            None if candidate is None else candidate.why,
            noted.get("quota", {}).get("refused"),
            None if queue is None else queue.get("refused"),
            _guards(noted) if "guard_input" in noted or "guard_output" in noted else "",
        )
        known = self._lines.get(alike)
        if known is None:
            found = self._deciding.of(call, status, code)
            known = self._lines[alike] = "\n".join(dict.fromkeys(map(str, found)))
        return known


def _guards(noted: Mapping[str, Mapping[str, Any]]) -> str:
    """Those that acted."""
    acted = [
        f"{name}: {facts['action']}"
        for stage in ("guard_input", "guard_output")
        for name, facts in noted.get(stage, {}).get("guards", {}).items()
        if facts.get("action") not in (None, "pass", "not_asked", "flag")
    ]
    return ", ".join(acted)


def _why_moved(noted: Mapping[str, Mapping[str, Any]], why: str) -> str:
    if why == "downgrade":
        return "the tier's model is full"
    if why == "spill_over":
        return "no place at once"
    fallback = noted.get("fallback", {})
    attempts = fallback.get("attempts", ())
    if fallback.get("breaker_open"):
        return "a breaker is open"
    if len(attempts) > 1:
        return str(attempts[0].get("outcome", "failed"))
    return "the model itself cannot be asked"
