"""Quotas while the store is down, as the policy's ``on_store_failure`` says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from gateway.errors import Overloaded
from gateway.quota.clock import SteadyClock
from gateway.quota.counters import DAY_MS, SLOT_MS, SLOTS, Elastic, ElasticRequest, QuotaDecision
from gateway.quota.limits import Amounts, Limits, Window
from gateway.quota.local_share import LocalShare
from gateway.stores.redis_link import PROBE_EVERY
from gateway.stores.script import Command
from gateway.stores.store import StoreDown

if TYPE_CHECKING:
    from gateway.quota.redis import RedisCounters

UNMETERED = QuotaDecision(admitted=True)
NOTHING = Amounts(0, 0, 0)
MOST_DEBTS = 10_000
"""Sums of what was used during an outage, before those of a day are merged."""


@dataclass(slots=True)
class _Held:
    """A request in flight, and which counters hold its reservation."""

    limits: Limits
    amounts: Amounts
    where: Literal["store", "share", "nowhere"]
    name: str
    """Its id in the store: the first reservation may still arrive there, to be void."""
    more: Amounts = NOTHING
    """Beyond ``amounts``: reserved in the local share, for a request that the store admitted before the outage."""


class FailoverCounters:
    """Counters in Redis, with a fallback for outages.

    With ``local`` each process enforces its share of what was left (``LocalShare``); with ``open``, too, while a store
    that answers has lost its data: nobody is to spend a budget again for that. When the store is back, and before it
    is asked again, what was admitted meanwhile is entered there: usage is charged, requests in flight are reserved.
    """

    def __init__(self, store: RedisCounters, *, clock: Callable[[], float] | None = None) -> None:
        self._store = store
        self._clock = clock or SteadyClock()
        self._held: dict[str, _Held] = {}
        self._in_force: frozenset[str] = frozenset()
        """Limits by the day or month, by key, when the ledger was last read."""
        self._share: LocalShare | None = None
        """During an outage, from its first request on."""
        self._debts: dict[tuple[Limits, int], Amounts] = {}
        """Used during the outage, by limits and time slot; what no minute counts any more, by day."""
        self._unsent: list[Command] = []
        """Commands that the store has not run, or only in part."""
        store.on_return = self._catch_up

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        """Raises ``Overloaded`` with ``closed``, and nothing else."""
        try:
            decision = await self._store.reserve(request_id, limits, amounts, elastic)
            where: Literal["store", "share", "nowhere"] = "store"
        except StoreDown as error:
            _refuse_closed(limits, error)
            decision, where = UNMETERED, "nowhere"
            if limits.on_store_failure == "local" or self._store.lost:
                decision, where = await self._locally().reserve(request_id, limits, amounts, elastic), "share"
        if decision.admitted:
            if limits.settles:
                self._held.setdefault(
                    request_id, _Held(limits, decision.granted or NOTHING, where, request_id)
                )
            elif where != "store":
                self._charge_later(limits, amounts)
        return decision

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: ElasticRequest | None = None
    ) -> QuotaDecision:
        held = self._held.get(request_id)
        if held is None:
            return QuotaDecision(False)
        if held.where == "nowhere":
            return UNMETERED
        if held.where == "share" and self._share is not None:
            decision = await self._share.extend(request_id, limits, amounts, elastic)
        else:
            try:
                decision = await self._store.extend(held.name, limits, amounts, elastic)
            except StoreDown as error:
                _refuse_closed(limits, error)
                if limits.on_store_failure == "open" and not self._store.lost:
                    return UNMETERED
                return await self._add(request_id, held, amounts, elastic)
        if decision.granted is not None:
            held.amounts = decision.granted
        return decision

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        held = self._held.pop(request_id, None)
        if held is None or held.where == "store":
            self._store.settle(held.name if held is not None else request_id, limits, used)
        elif limits.settles:
            self._charge_later(limits, used)
        if held is not None and self._share is not None:
            self._share.release(request_id, limits)
            known = held.amounts if held.more != NOTHING else NOTHING
            self._share.settle(request_id, limits, _beyond(used, known))

    @property
    def away(self) -> bool:
        """Whether the store failed when it was last asked."""
        return self._store.down

    @property
    def up(self) -> float:
        """1 where it answered."""
        return float(not self._store.down)

    @property
    def losses(self) -> int:
        """How often the store had lost its data, or another took its place."""
        return self._store.losses

    def watch(self) -> None:
        """Learn what other processes use, in case the store goes down before the first request here."""
        self._store.watch()

    async def remember(self, used: Mapping[tuple[str, Window], int], groups: Mapping[str, str]) -> None:
        """Usage from the ledger, in case the store is down from the start, or has lost its data.

        ``groups`` are those of all limits, by key (``Limits.group``)."""
        before, self._in_force = self._in_force, frozenset(groups)
        # What was used meanwhile was charged to others, and is in the ledger alone.
        back = {name: amount for name, amount in used.items() if name[0] not in before} if before else {}
        if self._share is not None:
            for (key, window), amount in back.items():
                self._share.remember(key, window, amount)
        await self._store.remember(
            used, self._clock(), back={key: amount for (key, _), amount in back.items()}
        )

    async def aclose(self) -> None:
        await self._store.aclose()

    def _locally(self) -> LocalShare:
        if self._share is None:
            self._share = LocalShare(self._store.known, self._clock)
            for request_id, held in self._held.items():
                if held.where == "store":
                    self._share.occupy(request_id, held.limits, held.amounts.answers)
        return self._share

    async def _add(
        self, request_id: str, held: _Held, amounts: Amounts, elastic: ElasticRequest | None
    ) -> QuotaDecision:
        """For a request that the store admitted before the outage: what it needs beyond that comes from the local
        share."""
        share, known = self._locally(), held.amounts
        if elastic is not None:
            least, usual, divisor = elastic.elastic
            elastic = Elastic(_beyond(least, known), _beyond(usual, known), divisor)
        asked = _beyond(amounts, known)._replace(requests=0, answers=0)
        if held.more == NOTHING:
            decision = await share.reserve(request_id, held.limits, asked, elastic)
        else:
            decision = await share.extend(request_id, held.limits, asked, elastic)
        if decision.granted is None:
            return decision
        held.more = decision.granted
        return decision._replace(granted=_sum(known, held.more))

    def _charge_later(self, limits: Limits, used: Amounts) -> None:
        slot = int(self._clock() * 1000) // SLOT_MS
        known = self._debts.get((limits, slot))
        if known is None and len(self._debts) > MOST_DEBTS:
            self._fold(slot)
        self._debts[limits, slot] = _sum(known, used)

    def _fold(self, slot: int) -> None:
        """Merge what no minute counts any more."""
        debts: dict[tuple[Limits, int], Amounts] = {}
        for (limits, then), used in self._debts.items():
            since = then if then >= slot - SLOTS else then - then % (DAY_MS // SLOT_MS)
            debts[limits, since] = _sum(debts.get((limits, since)), used)
        self._debts = debts

    def restore_from(
        self, recorded: Callable[[], Awaitable[Mapping[str, int] | None]] | None, groups: Mapping[str, str]
    ) -> None:
        """``recorded`` reads the ledger, for a store that has lost its data."""
        self._store.recorded = recorded

    async def _catch_up(self, lost: bool, has_all: bool) -> None:
        """Before the store is asked again, send it what it missed. Raises ``StoreDown``."""
        if has_all:
            self._forget_recorded()
        # Others have let in their shares, too, of which the store is yet to hear: until then this one keeps to its own.
        together = lost or self._share is not None
        while True:
            self._gather(lost)
            lost = False
            count = len(self._unsent)
            if not count and together:
                together = False
                await self._store.meet()
                continue
            if not count:
                # No task runs between this and the first request that asks the store again.
                self._share = None
                return
            await self._store.replay(self._unsent)
            del self._unsent[:count]

    def _forget_recorded(self) -> None:
        """The store has from the ledger what was used of days and months; minutes are in no ledger."""
        self._unsent.clear()
        debts, self._debts = self._debts, {}
        for (limits, slot), used in debts.items():
            minutes = replace(limits, each=tuple(one for one in limits.each if one.window == "minute"))
            if minutes.each:
                self._debts[minutes, slot] = _sum(self._debts.get((minutes, slot)), used)

    def _gather(self, lost: bool) -> None:
        now, store = self._clock(), self._store
        for (limits, slot), used in self._debts.items():
            self._unsent.append(store.charge(limits, used, max(0.0, now - slot * SLOT_MS / 1000)))
        self._debts.clear()
        for request_id, held in self._held.items():
            if held.where == "share" or (lost and held.where == "store"):
                if held.where == "share":
                    held.where, held.name = "store", f"{request_id}+"
                self._unsent.append(store.adopt(held.name, held.limits, held.amounts))
            if held.more != NOTHING:
                held.amounts, held.more = _sum(held.amounts, held.more), NOTHING
                self._unsent.append(store.adopt(held.name, held.limits, held.amounts, extends=True))


def _refuse_closed(limits: Limits, error: StoreDown) -> None:
    if limits.on_store_failure == "closed":
        raise Overloaded(
            "The gateway cannot reach the store that holds its quotas, and its policy is to refuse requests "
            "until it can. Try again shortly.",
            code="store_unavailable",
            retry_after=2 * PROBE_EVERY,
        ) from error


def _beyond(amounts: Amounts, known: Amounts) -> Amounts:
    return Amounts(*(max(0, one - other) for one, other in zip(amounts, known, strict=True)))


def _sum(one: Amounts | None, other: Amounts) -> Amounts:
    return other if one is None else Amounts(*map(sum, zip(one, other, strict=True)))
