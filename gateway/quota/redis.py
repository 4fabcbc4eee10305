"""Counters in Redis, shared by all processes that name the same server. Each reservation is one atomic script."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import orjson

from gateway.quota.counters import ElasticRequest, QuotaDecision
from gateway.quota.last_known import LastKnown
from gateway.quota.limits import Amounts, Limits, Window
from gateway.quota.redis_commands import Loss, QuotaCommands, Settled
from gateway.quota.redis_decisions import Reservation, data_lost, decided
from gateway.quota.redis_loss import begin_anew, replication_id, wait_for_all
from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.script import Command
from gateway.stores.script_runner import ScriptRunner
from gateway.stores.store import StoreDown

log = logging.getLogger(__name__)

TIMEOUT = 0.25
"""Seconds after which the server counts as down: the gateway keeps its own latency."""
PREFIX = "{tollgate}:quota:"
RENEW_EVERY = 0.9
SHARED = 0.1
"""Seconds for which what one process has read of all counters is told to others, too: reading is most of a renewal.
With the pause it makes a second, which is how old a process' knowledge is at most."""
SECONDS_TO_FLUSH = 3.0
AT_ONCE = 128
"""Commands in one round trip."""
ATTEMPTS = 5
"""To send a settlement that the server answers with an error."""
MOST_UNSETTLED = 50_000
"""Settlements that may wait while the server is down."""
SECONDS_TO_RETURN = 10.0
"""After a loss, for all who shared the server to be known to it again."""
_NOTHING: Mapping[str, int] = {}
_LOST = "Redis has lost its data; this process restores what it knows"


def outage_log(parts: int = 1) -> OutageLog:
    return OutageLog("quotas", "requests are let in as 'on_store_failure' says", parts=parts)


class RedisCounters:
    """``url`` as for ``RedisLink``; of a cluster these are the counters of one part, whose hash tag ``prefix`` has.

    Commands that are issued together share a round trip. While the server is down, ``reserve`` raises at once. ``now``
    replaces the server's clock, in milliseconds of Unix time.
    """

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], int] | None = None,
        prefix: str = PREFIX,
        told: OutageLog | None = None,
    ) -> None:
        """``told``: what the parts of a cluster share."""
        self._link = RedisLink(
            url,
            told or outage_log(),
            prefix=prefix,
            one_server=True,
            on_down=self._refuse_queued,
            recover=self._renew,
            on_up=self._send_settlements,
        )
        self._commands = QuotaCommands(prefix, now)
        self._runner = ScriptRunner(self._link, self._commands.scripts)
        self._reservations: deque[Reservation] = deque()
        self._settlements: deque[Command] = deque()
        self._settled: deque[tuple[int, Command]] = deque(maxlen=MOST_UNSETTLED)
        """Since the last renewal, and when: the server may lose them before anybody has read what they came to."""
        self._turn = asyncio.Lock()
        """Held while settlements are sent or changes are read: one that is answered after the changes, of which they
        know already, would be added to them once more."""
        self._sending: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._closing = False
        self._phase = crc32(f"{platform.node()}:{os.getppid()}".encode()) / 2**32
        """When in a second it renews; the same for all workers of a gateway."""
        self._changes_until = "-inf"
        """Changes up to this time, by the server's clock, are known."""
        self._lost = False
        """The server has lost its data, and was not given it again."""
        self._read = 0
        """When, by the server's clock, it was last read what was used;"""
        self._unread: list[Settled] = []
        """and what this process has settled since, of a server that has lost it."""
        self._name = secrets.token_hex(6)
        """Of this process, whatever it holds."""
        self._server: str | None = None
        """That was last known to have its data, by its run id, and by its replication id, which is another each time
        that it becomes a master: another, or the same that was a replica, may be less than a second behind."""
        self._expected = (0, 0.0)
        """How many processes shared a server that lost its data, and until when those that are not back yet count."""
        self.losses = 0
        """How often the server was found to have lost its data, or another to have taken its place."""
        self._to_raise: tuple[Mapping[str, int], float] | None = None
        """What the ledger has recorded, and when, of which the server is yet to be told: it may have lost its data, or
        never have counted what was used while a limit was not in force, or in another part of a cluster."""
        self.known = LastKnown()
        self.recorded: Callable[[], Awaitable[Mapping[str, int] | None]] | None = None
        """Usage by the day or month from the ledger, of all that has ended until now; None where it does not answer."""
        self.on_return: Callable[[bool, bool], Awaitable[object]] | None = None
        """Called before the server is used again after an outage, or (True) after it lost its data, to ``replay`` what
        it missed; (True) where the server has all of that from the ledger. Raises ``StoreDown`` if it could not."""

    @property
    def down(self) -> bool:
        return self._link.down

    @property
    def lost(self) -> bool:
        """Whether the server answers, but has lost its data, and was not yet given it again."""
        return self._lost

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        return await self._request(request_id, limits, amounts, elastic, extends=False)

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        return await self._request(request_id, limits, amounts, elastic, extends=True)

    async def _request(
        self,
        request_id: str,
        limits: Limits,
        amounts: Amounts,
        elastic: ElasticRequest | None,
        *,
        extends: bool,
    ) -> QuotaDecision:
        if self._link.down:
            raise StoreDown("Redis did not answer when it was last asked.")
        command = self._commands.reserve(request_id, limits, amounts, elastic, extends=extends)
        decision: asyncio.Future[QuotaDecision] = asyncio.get_running_loop().create_future()
        reservation = Reservation(request_id, limits, command, decision, extends)
        self._reservations.append(reservation)
        self._send_soon()
        try:
            answer = await decision
            if answer.used:
                self.known.update(limits, answer.used, time.time())
            return answer
        except asyncio.CancelledError:
            # The decision may have arrived just as the caller left.
            if decision.done() and not decision.cancelled() and decision.exception() is None:
                self._release(reservation)
            raise

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        if limits.settles and not self._link.closed:
            self._put(request_id, limits, used)

    def adopt(self, request_id: str, limits: Limits, held: Amounts, *, extends: bool = False) -> Command:
        return self._commands.adopt(request_id, limits, held, extends=extends)

    def charge(self, limits: Limits, used: Amounts, age: float) -> Command:
        return self._commands.charge(limits, used, age)

    async def aclose(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_TO_FLUSH):
                while self._settlements or (self._sending is not None and not self._sending.done()):
                    self._send_soon()
                    await asyncio.sleep(0.005)
        if self._settlements:
            log.warning(
                "Redis was down to the end: %d requests were not settled there", len(self._settlements)
            )
        self._closing = True
        tasks = [task for task in (self._sending, self._renewing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refuse_queued(StoreDown("The gateway is closing its link to this store."))
        if tasks:
            # What this instance still holds, if anything, counts no longer.
            with suppress(StoreDown):
                mine = self._commands
                await self._link.ask(lambda client: client.zrem(mine.instances, mine.instance), TIMEOUT)
        await self._link.aclose()

    def _put(self, request_id: str, limits: Limits, used: Amounts, *, void: bool = False) -> None:
        """``void``: the reservation itself may still arrive."""
        if len(self._settlements) >= MOST_UNSETTLED:
            # What is dropped here would stay reserved for as long as this instance lives: continue as another.
            self._settlements.clear()
            self._commands.become_another()
            log.warning("Redis has been down for too long: %d requests are not settled there", MOST_UNSETTLED)
        self._settlements.append(self._commands.settle(request_id, limits, used, void=void))
        self._send_soon()

    def watch(self) -> None:
        """Learn what other processes reserve from now on, even before anything is reserved here."""
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._keep_alive())

    async def remember(
        self, used: Mapping[tuple[str, Window], int], at: float, *, back: Mapping[str, int] = _NOTHING
    ) -> None:
        """Raise counters to what was used at least, before anything else is reserved here. A server that is down is
        told once it answers. ``at`` is Unix time. ``back``: of limits that were not in force for a while."""
        self.known.remember(used, at)
        if self._link.down and back:
            self.known.raise_to(back, at)
        if used:
            if not self._link.down:
                self._to_raise = {key: amount for (key, _), amount in used.items()}, at
            elif back or self._to_raise is None:  # what it has of the outage is still to be sent
                self._to_raise = {**(self._to_raise[0] if self._to_raise is not None else {}), **back}, at
        if self._to_raise is not None and not self._link.down:
            try:
                await self._renew()
            except StoreDown as error:
                self._link.fail(error)

    def _send_soon(self) -> None:
        if self._sending is None or self._sending.done():
            self.watch()
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """Settlements go first: they free capacity for the reservations that follow."""
        while self._reservations or (self._settlements and not self._link.down):
            settlements = [self._settlements.popleft() for _ in range(min(AT_ONCE, len(self._settlements)))]
            reservations = [
                self._reservations.popleft() for _ in range(min(AT_ONCE, len(self._reservations)))
            ]
            reservations = [one for one in reservations if not one.decision.done()]
            try:
                async with self._turn:
                    answers = await self._run([*settlements, *(one.command for one in reservations)])
                    self._take_settlements(settlements, answers)
            except BaseException as error:
                self._settlements.extendleft(reversed(settlements))
                down = StoreDown(str(error))
                for one in reservations:
                    self._release(one, void=True)
                    one.refuse(down)
                if not isinstance(error, Exception):
                    raise
                if not isinstance(error, StoreDown):
                    log.exception("quotas: a bug")
                    self._link.fail(down)
                return
            for one, answer in zip(reservations, answers[len(settlements) :], strict=True):
                self._take_decision(one, answer)

    def _take_settlements(self, settlements: Sequence[Command], answers: Sequence[Any]) -> None:
        for command, answer in zip(settlements, answers, strict=False):
            if not isinstance(answer, Exception):
                self._settled.append((int(answer), command))
                continue
            command.failed += 1
            if command.failed < ATTEMPTS:
                self._settlements.append(command)
            else:
                log.error("Redis refused the settlement of %s: %s", command.args[0], answer)
            self._link.fail(StoreDown(f"Redis refused a settlement: {answer}"))

    def _take_decision(self, one: Reservation, answer: Any) -> None:
        decision = decided(answer)
        if decision is None:
            self._lost = self._lost or data_lost(answer)
            down = StoreDown(_LOST if self._lost else f"Redis refused a reservation: {answer}")
            one.refuse(down)
            self._link.fail(down, probe_in=0 if self._lost else None)
        elif one.decision.done():  # the caller has left meanwhile
            self._release(one)
        else:
            one.decision.set_result(decision)

    def _refuse_queued(self, error: Exception) -> None:
        self._runner.forget()
        while self._reservations:
            self._reservations.popleft().refuse(error)

    def _send_settlements(self) -> None:
        if self._settlements:
            self._send_soon()

    def _release(self, one: Reservation, *, void: bool = False) -> None:
        if one.limits.settles and not one.extends:
            self._put(one.request_id, one.limits, Amounts(0, 0, 0), void=void)

    async def _run(self, commands: Sequence[Command], *, probing: bool = False) -> list[Any]:
        return await self._runner.run(commands, TIMEOUT, probing=probing)

    async def _keep_alive(self) -> None:
        """While the server is down, the link's probe renews."""
        while not self._closing:  # the client library swallows a cancellation while it connects
            if not self._link.down:
                try:
                    await self._renew()
                except StoreDown as error:  # also: read-only, out of memory, still loading
                    self._link.fail(error, probe_in=0 if self._lost else None)
            # All workers of a gateway ask at the same time, so that one report does for them.
            await asyncio.sleep(max(RENEW_EVERY / 4, RENEW_EVERY - (time.time() - self._phase) % RENEW_EVERY))

    async def _renew(self) -> None:
        """Refresh this instance's entry, and read what others reserve. A server that was down or lost its data first
        gets what it missed. Raises ``StoreDown``."""
        async with self._turn:
            lost = await self._is_another() or self._lost
            changes = None if lost else await self._ask_changes()
            own = list(self._commands.settled(self._take_settled(None if changes is None else self._read)))
            self.known.add([(one.key, one.amount) for one in own], time.time())
            self._lost = changes is None
            self._unread = [*self._unread, *own] if self._lost else []
            self._note(changes or ())
        if self._lost and not self._link.down:
            raise StoreDown(_LOST)
        if self._link.down:
            await begin_anew(self._link, self._told, self._name)
        has_all = False
        if self._lost:
            self._expected = (self.known.gateways, time.monotonic() + SECONDS_TO_RETURN)
            has_all = await self._restore()
        if (to_raise := self._to_raise) is not None:
            now = time.time()
            self.known.raise_to(*to_raise, now)
            await self.replay(self._commands.raised(self.known.used(), now))
            if self._to_raise is to_raise:
                self._to_raise = None
        if self._link.down and self.on_return is not None:
            await self.on_return(self._lost, has_all)
        elif self._lost:
            await self.meet()
        self.losses += self._lost
        self._lost = False

    def _take_settled(self, until: int | None) -> list[tuple[int, Command]]:
        """Those that a report of this time has in it, which may be older than they are; all with None."""
        if until is None:
            taken = list(self._settled)
            self._settled.clear()
        else:
            taken = [one for one in self._settled if one[0] <= until]
            later = [one for one in self._settled if one[0] > until]
            self._settled = deque(later, maxlen=MOST_UNSETTLED)
        return taken

    async def meet(self) -> None:
        """Wait until all who share the server have told it what it missed. Raises ``StoreDown``."""
        await wait_for_all(self._link, self._told, self._name, self.known.gateways, lost=self._lost)
        self._note(await self._ask_changes() or ())

    @property
    def _told(self) -> str:
        """Where gateways say that they are back: of this loss alone, as a replica has what another was told."""
        return f"{self._commands.instances}:told:{self._server}"

    def _note(self, changes: Sequence[str]) -> None:
        now = time.time()
        for key, used, count in zip(*[iter(changes)] * 3, strict=True):
            self.known.put(key.removeprefix(self._commands.prefix), int(used), int(count), now)

    async def _ask_changes(self) -> list[str] | None:
        """What others have changed; None if the server has lost its data, and is to be asked again with nothing."""
        # Who comes back has to hear of all that others have told meanwhile.
        renewal = self._commands.renewal(self._changes_until, 0.0 if self._link.down else SHARED)
        (answer,) = await self._run([renewal], probing=True)
        if isinstance(answer, Exception):
            raise StoreDown(f"Redis refused a renewal: {answer}") from answer
        renewed, gateways, until, at, report = (_text(field) for field in answer)
        if int(renewed) < 0:
            return None
        self._changes_until = until
        self._read = int(at)
        self._commands.renewed = int(renewed)
        expected, until_then = self._expected
        self.known.gateways = max(int(gateways), expected if time.monotonic() < until_then else 1)
        changes: list[str] = orjson.loads(report)
        return changes

    async def _restore(self) -> bool:
        """Tell a server that has lost its data, or has older data now, what was used. True if the ledger knew it all:
        then nothing that has ended until now is to be told once more."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
        ended = len(self._settlements)
        recorded = None if self.recorded is None else await self.recorded()
        used = {key: snapshot.used for key, snapshot in self.known.calendar()}
        for one in self._unread:
            used[one.key] = max(0, used.get(one.key, 0) - one.amount)
        own = list(self._unread)
        has_all = recorded is not None and self.known.is_within(recorded, time.time())
        if recorded is not None:
            self.known.raise_to(recorded, time.time())
        if has_all:
            told = [self._settlements.popleft() for _ in range(min(ended, len(self._settlements)))]
            own += self._commands.settled((_LATER, command) for command in told)
        queued = filter(self._commands.settles, self._settlements)
        loss = Loss(self._read, own, used, self._server or "")
        await self.replay(self._commands.raised(self.known.calendar(), time.time(), loss))
        forgotten, instances = self._commands.instance, self._commands.instances
        await self._link.ask(lambda client: client.zrem(instances, forgotten), TIMEOUT, probing=True)
        await self.replay([*map(self._commands.adopted, queued)])
        self._commands.become_another()
        self._changes_until = "-inf"
        return has_all

    async def _is_another(self) -> bool:
        """Whether another server answers than before an outage, or the same that was a replica meanwhile. One that was
        less than a second behind has renewed this instance as often as the one that is gone."""
        if self._server is not None and not self._link.down:
            return False
        replication = await replication_id(self._link)
        before, now = self._server, self._link.run_id and f"{self._link.run_id}:{replication}"
        self._server = now or before or ""
        return bool(before and now) and before != now

    async def replay(self, commands: Sequence[Command]) -> None:
        """Run ``commands`` on a server that still counts as down. Raises ``StoreDown``; all may be repeated then."""
        for start in range(0, len(commands), AT_ONCE):
            for answer in await self._run(commands[start : start + AT_ONCE], probing=True):
                if isinstance(answer, Exception):
                    raise StoreDown(f"Redis refused what it had missed: {answer}") from answer


_LATER = 2**52
"""Than anybody has read what was used."""


def _text(field: Any) -> str:
    return field.decode() if isinstance(field, bytes) else str(field)
