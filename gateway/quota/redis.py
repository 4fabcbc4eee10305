"""Counters in Redis, shared by all processes that name the same server. Each reservation is one atomic script."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Any

from redis import asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from gateway.quota.counters import DEBT_MINUTES, Elastic, Verdict
from gateway.quota.limits import Amounts, Limits
from gateway.stores.store import StoreDown

log = logging.getLogger(__name__)

SECONDS_TO_ANSWER = 0.25
"""A store that is slower than this is down: the gateway keeps its own latency."""
RENEW_EVERY = 5.0
PROBE_EVERY = 0.25
"""Seconds between attempts to reach a store that is down."""
SECONDS_TO_FLUSH = 3.0
AT_ONCE = 128
"""Commands in one round trip."""
ATTEMPTS = 5
"""At a settlement that the server answers with an error."""
MOST_UNSETTLED = 50_000
"""Settlements that wait for a store that is down."""


@dataclass(frozen=True, slots=True)
class _Script:
    """A Lua script, and how it is called by its SHA-1."""

    text: str
    sha: str

    @classmethod
    def load(cls, name: str) -> _Script:
        folder = resources.files("gateway.stores") / "scripts"
        text = "".join((folder / file).read_text("utf-8") for file in ("quota_time.lua", f"quota_{name}.lua"))
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True)
class _Command:
    script: _Script
    keys: list[str]
    args: list[str | int]
    failed: int = 0


@dataclass(slots=True)
class _Reservation:
    request_id: str
    limits: Limits
    command: _Command
    verdict: asyncio.Future[Verdict]
    extends: bool
    """What comes of it is settled with the reservation that it extends."""


class RedisCounters:
    """``url`` is ``redis://[user:password@]host[:port]/[db]``, or ``rediss://`` for TLS.

    Commands that are given at the same time travel together. Once the server has failed, ``reserve`` raises without
    asking it, until it is found to answer again. ``now`` replaces the server's clock, in milliseconds of Unix time.
    """

    def __init__(
        self, url: str, *, now: Callable[[], int] | None = None, prefix: str = "{tollgate}:quota:"
    ) -> None:
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=SECONDS_TO_ANSWER,
            socket_connect_timeout=SECONDS_TO_ANSWER,
            retry=Retry(NoBackoff(), 1),
        )
        self._now = now
        self._prefix = prefix
        self._instance = secrets.token_hex(6)
        self._reserve = _Script.load("reserve")
        self._settle = _Script.load("settle")
        self._renew = _Script.load("renew")
        self._reservations: deque[_Reservation] = deque()
        self._settlements: deque[_Command] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._loaded = False
        """Whether the server was given the scripts, since it was last seen to fail."""
        self._closed = False
        self._probe = asyncio.Event()
        self.down = False

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        return await self._ask(request_id, limits, amounts, elastic, extends=False)

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        return await self._ask(request_id, limits, amounts, elastic, extends=True)

    async def _ask(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None, *, extends: bool
    ) -> Verdict:
        if self.down:
            raise StoreDown("Redis did not answer when it was last asked.")
        args: list[str | int] = [request_id, self._instance, self._time()]
        args.append("extend" if extends else "keep" if limits.settles else "")
        args += (limits.windows, limits.places, limits.maxima, " ".join(map(str, amounts)))
        if elastic is not None:
            least, usual, share = elastic
            args += (" ".join(map(str, least)), " ".join(map(str, usual)), share)
        keys = [self._prefix + "instances", self._reserved, *self._keys_of(limits)]
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        reservation = _Reservation(request_id, limits, _Command(self._reserve, keys, args), verdict, extends)
        self._reservations.append(reservation)
        self._send_soon()
        try:
            return await verdict
        except asyncio.CancelledError:
            # It may have come in the very moment in which the caller left.
            if verdict.done() and not verdict.cancelled() and verdict.exception() is None:
                self._give_back(reservation)
            raise

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        if limits.settles and not self._closed:
            self._put(request_id, limits, used)

    async def aclose(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_FLUSH):
                while self._settlements or (self._sending is not None and not self._sending.done()):
                    self._send_soon()
                    await asyncio.sleep(0.005)
        if self._settlements:
            log.warning(
                "Redis was away to the end: %d requests were not settled there", len(self._settlements)
            )
        answers, self._closed = not self.down, True
        tasks = [task for task in (self._sending, self._renewing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail(StoreDown("The gateway is letting go of this store."))
        if tasks and answers:
            # What it still holds, if anything, counts no longer.
            with suppress(RedisError, OSError):
                async with asyncio.timeout(SECONDS_TO_ANSWER):
                    await self._redis.zrem(self._prefix + "instances", self._instance)
        await self._redis.aclose()

    @property
    def _reserved(self) -> str:
        return f"{self._prefix}reserved:{self._instance}"

    def _keys_of(self, limits: Limits) -> list[str]:
        return [self._prefix + key for key in limits.keys]

    def _time(self) -> str | int:
        return "" if self._now is None else self._now()

    def _put(self, request_id: str, limits: Limits, used: Amounts, *, void: bool = False) -> None:
        """``void``: the reservation itself may still be on its way."""
        args = [request_id, self._instance, self._time(), int(void), DEBT_MINUTES]
        args += (limits.windows, limits.places, limits.maxima, " ".join(map(str, used)))
        if len(self._settlements) >= MOST_UNSETTLED:
            # What is forgotten here would be held in reserve for as long as this instance lives: become another.
            self._settlements.clear()
            self._instance = secrets.token_hex(6)
            log.warning("Redis has been away for too long: %d requests are not settled there", MOST_UNSETTLED)
        self._settlements.append(_Command(self._settle, [self._reserved, *self._keys_of(limits)], args))
        self._send_soon()

    def _send_soon(self) -> None:
        if self._sending is None or self._sending.done():
            loop = asyncio.get_running_loop()
            if self._renewing is None:
                self._renewing = loop.create_task(self._keep_alive())
            self._sending = loop.create_task(self._send())

    async def _send(self) -> None:
        """Settlements go first: a request that has ended makes room for the one that follows it."""
        while (self._settlements or self._reservations) and (self._reservations or not self.down):
            settlements = [self._settlements.popleft() for _ in range(min(AT_ONCE, len(self._settlements)))]
            reservations = [
                self._reservations.popleft() for _ in range(min(AT_ONCE, len(self._reservations)))
            ]
            reservations = [one for one in reservations if not one.verdict.done()]
            try:
                answers = await self._run([*settlements, *(one.command for one in reservations)])
            except BaseException as error:
                self._settlements.extendleft(reversed(settlements))
                down = StoreDown(f"Redis did not answer: {str(error) or 'it is too slow'}")
                for one in reservations:
                    self._give_back(one, void=True)
                    _refuse(one, down)
                if not isinstance(error, Exception):
                    raise
                if not isinstance(error, RedisError | OSError):
                    log.exception("quotas: a fault of the gateway's own")
                self._fail(down)
                return
            self._take_settlements(settlements, answers)
            for one, answer in zip(reservations, answers[len(settlements) :], strict=True):
                self._take_verdict(one, answer)

    def _take_settlements(self, settlements: Sequence[_Command], answers: Sequence[Any]) -> None:
        for command, answer in zip(settlements, answers, strict=False):
            if not isinstance(answer, Exception):
                continue
            command.failed += 1
            if command.failed < ATTEMPTS:
                self._settlements.append(command)
            else:
                log.error("Redis refused the settlement of %s: %s", command.args[0], answer)
            self._fail(StoreDown(f"Redis refused a settlement: {answer}"))

    def _take_verdict(self, one: _Reservation, answer: Any) -> None:
        figures = [] if isinstance(answer, Exception) else [int(figure) for figure in answer.split()]
        if len(figures) < 6:
            down = StoreDown(f"Redis refused a reservation: {answer}")
            _refuse(one, down)
            self._fail(down)
        elif one.verdict.done():  # the caller has left meanwhile
            self._give_back(one)
        else:
            one.verdict.set_result(_verdict(figures))

    def _fail(self, error: StoreDown) -> None:
        if not self.down and not self._closed:
            log.warning("quotas: %s", error)
        self.down = True
        self._loaded = False
        self._probe.set()
        while self._reservations:
            _refuse(self._reservations.popleft(), error)

    def _give_back(self, one: _Reservation, *, void: bool = False) -> None:
        if one.limits.settles and not one.extends:
            self._put(one.request_id, one.limits, Amounts(0, 0, 0), void=void)

    async def _run(self, commands: Sequence[_Command]) -> list[Any]:
        """One round trip; a second one after the server has lost its scripts unnoticed, as in a quick restart."""
        load = () if self._loaded else (self._reserve, self._settle, self._renew)
        async with asyncio.timeout(SECONDS_TO_ANSWER):
            async with self._redis.pipeline(transaction=False) as pipe:
                for script in load:
                    pipe.execute_command("SCRIPT LOAD", script.text)
                for command in commands:
                    pipe.evalsha(command.script.sha, len(command.keys), *command.keys, *command.args)
                answers = (await pipe.execute(raise_on_error=False))[len(load) :]
            self._loaded = True
            unknown = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if unknown:
                async with self._redis.pipeline(transaction=False) as pipe:
                    for i in unknown:
                        command = commands[i]
                        pipe.eval(command.script.text, len(command.keys), *command.keys, *command.args)
                    for i, answer in zip(unknown, await pipe.execute(raise_on_error=False), strict=True):
                        answers[i] = answer
        return list(answers)

    def _renewal(self) -> _Command:
        keys = [self._prefix + "instances", self._reserved]
        return _Command(self._renew, keys, [self._instance, self._time()])

    async def _keep_alive(self) -> None:
        while True:
            if not self.down:
                self._probe.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(RENEW_EVERY):
                        await self._probe.wait()
            if self.down:
                await asyncio.sleep(PROBE_EVERY)
            try:
                (answer,) = await self._run([self._renewal()])
            except (RedisError, OSError) as error:
                answer = error
            if isinstance(answer, Exception):  # also: read-only, out of memory, still loading
                self._fail(StoreDown(f"Redis did not answer: {str(answer) or 'it is too slow'}"))
                continue
            if self.down:
                log.warning("quotas: Redis answers again")
            self.down = False
            if self._settlements:
                self._send_soon()


def _refuse(one: _Reservation, error: StoreDown) -> None:
    if not one.verdict.done():
        one.verdict.set_exception(error)


def _verdict(figures: list[int]) -> Verdict:
    admitted, refused, wait = figures[:3]
    return Verdict(
        admitted=admitted == 1,
        used=tuple(figures[6::2]),
        reset=tuple([reset / 1000 for reset in figures[7::2]]),
        refused=refused,
        wait=wait / 1000 if wait >= 0 else None,
        granted=Amounts(*figures[3:6]) if admitted == 1 else None,
    )
