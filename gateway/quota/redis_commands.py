"""Commands of the quota scripts, as one process sends them to Redis."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.quota.counters import DEBT_MINUTES, ElasticRequest
from gateway.quota.last_known import Snapshot
from gateway.quota.limits import Amounts, Limits
from gateway.stores.script import Command, Script

MOST_CHANGES = 1_000
"""Changed counters that one renewal reports."""
_UNLIMITED = 2**53
_ANY = -1


class Settled(NamedTuple):
    """Usage of one limit by the day or month."""

    key: str
    at: int
    """By the server's clock, in milliseconds."""
    amount: int


class Loss(NamedTuple):
    """What one process adds to what all know of a server that has lost its data. Times are by the server's clock."""

    read: int
    """When it last read what was used."""
    settled: Sequence[Settled]
    """What it has settled itself since."""
    used: Mapping[str, int]
    """What it read, by limit."""
    name: str
    """Of the loss: accounts of it are not those of the one before, which a replica has, too."""


class QuotaCommands:
    """``now`` replaces the server's clock, in milliseconds of Unix time."""

    def __init__(self, prefix: str, now: Callable[[], int] | None) -> None:
        self.prefix = prefix
        self.instances = prefix + "instances"
        self._changed = self.instances + ":changed"
        self._report = self.instances + ":report"
        self.instance = secrets.token_hex(6)
        """Under this name the process holds what it reserves."""
        self._now = now
        self.renewed = _ANY
        """How often the server has renewed this instance: one that has done so less often has lost its data since."""
        self._reserve = Script.load("quota_common", "quota_reserve")
        self._settle = Script.load("quota_common", "quota_settle")
        self._renew = Script.load("quota_common", "quota_renew")
        self._charge = Script.load("quota_common", "quota_charge")
        self._raise = Script.load("quota_common", "quota_raise")
        self.scripts = (self._reserve, self._settle, self._renew, self._charge, self._raise)

    def become_another(self) -> None:
        """What this instance held counts no longer, once the server forgets it."""
        self.instance = secrets.token_hex(6)
        self.renewed = _ANY

    def reserve(
        self,
        request_id: str,
        limits: Limits,
        amounts: Amounts,
        elastic: ElasticRequest | None,
        *,
        extends: bool,
    ) -> Command:
        args: list[str | int] = [request_id, self.instance, self._time()]
        args.append("extend" if extends else "keep" if limits.settles else "")
        args += (self.renewed, limits.windows, limits.columns, limits.maxima, " ".join(map(str, amounts)))
        if elastic is not None:
            least, usual, divisor = elastic.elastic
            args += (" ".join(map(str, least)), " ".join(map(str, usual)), divisor)
        return Command(self._reserve, [self.instances, self.reserved, *self._keys_of(limits)], args)

    def adopt(self, request_id: str, limits: Limits, held: Amounts, *, extends: bool = False) -> Command:
        """Reserve what was admitted elsewhere, whether or not there is capacity. A repetition changes nothing."""
        unlimited = " ".join([str(_UNLIMITED)] * len(limits.each))
        args: list[str | int] = [request_id, self.instance, self._time()]
        args += ("extend" if extends else "keep", _ANY)
        args += (limits.windows, limits.columns, unlimited, " ".join(map(str, held)))
        return Command(self._reserve, [self.instances, self.reserved, *self._keys_of(limits)], args)

    def adopted(self, settlement: Command) -> Command:
        """The reservation of a settlement; for what it used, as what it held is not known any more."""
        request_id, instance, at, _, _, windows, columns, maxima, used = settlement.args
        unlimited = " ".join([str(_UNLIMITED)] * len(str(maxima).split()))
        args = [request_id, instance, at, "keep", _ANY, windows, columns, unlimited, used]
        return Command(self._reserve, [self.instances, settlement.keys[0], *settlement.keys[2:]], args)

    def settle(self, request_id: str, limits: Limits, used: Amounts, *, void: bool) -> Command:
        args = [request_id, self.instance, self._time(), int(void), DEBT_MINUTES]
        args += (limits.windows, limits.columns, limits.maxima, " ".join(map(str, used)))
        return Command(self._settle, [self.reserved, self._changed, *self._keys_of(limits)], args)

    def settles(self, command: Command) -> bool:
        """Whether it settles what was surely reserved."""
        return command.script is self._settle and not int(command.args[3])

    def settled(self, settlements: Iterable[tuple[int, Command]]) -> Iterator[Settled]:
        """Of limits by the day or month. Each settlement comes with its time."""
        for at, command in settlements:
            windows = str(command.args[5])
            if "day" not in windows and "month" not in windows:
                continue
            amounts = [int(amount) for amount in str(command.args[8]).split()]
            for key, window, column in zip(
                command.keys[2:], windows.split(), str(command.args[6]).split(), strict=True
            ):
                if window in ("day", "month") and (amount := amounts[int(column)]):
                    yield Settled(key.removeprefix(self.prefix), at, amount)

    def charge(self, limits: Limits, used: Amounts, age: float) -> Command:
        """Charge what was used ``age`` seconds ago without a reservation. Repeating the command changes nothing."""
        mark = f"{self.prefix}charged:{self.instance}:{secrets.token_hex(6)}"
        args: list[str | int] = [self._time(), round(age * 1000), limits.windows, limits.columns]
        return Command(self._charge, [mark, *self._keys_of(limits)], [*args, " ".join(map(str, used))])

    def renewal(self, changes_until: str, shared: float) -> Command:
        """``shared``: seconds that a report of what others have changed may be old."""
        args = [self.instance, self._time(), changes_until, MOST_CHANGES, self.renewed, round(shared * 1000)]
        return Command(self._renew, [self.instances, self.reserved, self._changed, self._report], args)

    def raised(
        self, known: Iterable[tuple[str, Snapshot]], now: float, loss: Loss | None = None
    ) -> list[Command]:
        """Raise limits to what is ``known`` to be used. After a ``loss`` what this instance held there is forgotten."""
        own: dict[str, list[int]] = {}
        for key, at, amount in loss.settled if loss is not None else ():
            own.setdefault(key, []).extend((at, amount))
        return [
            Command(
                self._raise,
                [self.prefix + key, f"{self.prefix}told:{'' if loss is None else loss.name}:{key}"],
                [
                    *(self._time(), key.rpartition(":")[2], snapshot.used, round((now - snapshot.at) * 1000)),
                    *(
                        ("", "", "", "")
                        if loss is None
                        else (self.instance, loss.read, _words(own.get(key, ())), loss.used.get(key, 0))
                    ),
                ],
            )
            for key, snapshot in known
        ]

    @property
    def reserved(self) -> str:
        return f"{self.prefix}reserved:{self.instance}"

    def _keys_of(self, limits: Limits) -> list[str]:
        return [self.prefix + key for key in limits.keys]

    def _time(self) -> str | int:
        return "" if self._now is None else self._now()


def _words(figures: Iterable[int]) -> str:
    return " ".join(map(str, figures))
