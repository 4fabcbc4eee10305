"""How many connections a worker has, of whom, and who makes room for whom.

Whoever opens a connection and says nothing, or ever so slowly, is a stranger until a request of his has proven a key.
Strangers may fill a part of the room only. Where there are more, those who have been here longest go: who means well
proves his key within a moment, and newcomers are not turned away for the sake of those who wait for nothing.
"""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

RESERVE = 64
"""File descriptors for all else: the log, the ledger, the policy, the store, the sidecar, and libraries."""
FEWEST, MOST = 8, 2**15
"""Connections, whatever the system says."""
GRACE = 0.1
"""Seconds in which there may be more strangers than that, if the room holds them: many come at once, and what they
have sent is still to be read."""
_TRIES = 32
"""Connections that are looked at, at most, for one that rests."""


class Member(Protocol):
    """A connection."""

    @property
    def address(self) -> str:
        """Of the peer."""
        ...

    @property
    def rests(self) -> bool:
        """Nobody works for it: it is between two requests, or one is coming in ever so slowly."""
        ...

    def leave(self) -> None:
        """Make room, at once."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    most: int
    strangers: int
    """Of these, connections on which nobody has proven a key."""
    per_address: int
    """Of these, from one address; an IPv6 network of 64 bits is one, as its holder has all of it."""

    @classmethod
    def of(
        cls, most: int = 0, strangers: int = 0, per_address: int = 0, *, descriptors: int
    ) -> ConnectionLimits:
        """What is 0 is as large as it may be: half of what is left is for upstream connections, half of the room for
        strangers, and half of that for one address."""
        fitting = min(max((descriptors - RESERVE) // 2, FEWEST), MOST)
        most = min(most or fitting, fitting)
        strangers = min(strangers or max(most // 2, 1), most)
        return cls(most, strangers, min(per_address or max(strangers // 2, 1), strangers))


class ConnectionLimiter:
    def __init__(self, room: ConnectionLimits) -> None:
        self.room = room
        self._strangers: dict[Member, str] = {}
        """Their networks; the oldest first."""
        self._of: dict[str, dict[Member, None]] = {}
        """Strangers by network; the oldest first."""
        self._known: set[Member] = set()
        self._order: deque[Member] = deque()
        """Those who are known, and some who were and have left; those looked at longest ago are at the left."""
        self._thinning: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def enter(self, newcomer: Member) -> bool:
        """Whether there is room, which others may have to make."""
        network = _network(newcomer.address)
        if len(self) >= self.room.most:
            leaving = self._leaving(network)
            if leaving is None:
                return False
            self._show_out(leaving)
        self._strangers[newcomer] = network
        same = self._of.setdefault(network, {})
        same[newcomer] = None
        crowded = len(same) > self.room.per_address or len(self._strangers) > self.room.strangers
        if crowded and self._thinning is None:
            self._thinning = asyncio.get_running_loop().call_later(GRACE, self._thin_out)
        return True

    def know(self, member: Member) -> None:
        """It has proven a key."""
        if self._forget_stranger(member):
            self._known.add(member)
            self._order.append(member)

    def left(self, member: Member) -> None:
        self._forget_stranger(member)
        self._known.discard(member)
        if len(self._order) > 2 * len(self._known) + _TRIES:
            self._order = deque(one for one in self._order if one in self._known)

    def _thin_out(self) -> None:
        self._thinning = None
        for same in [*self._of.values()]:
            for member in [*same][: max(len(same) - self.room.per_address, 0)]:
                self._show_out(member)
        for member in [*self._strangers][: max(len(self._strangers) - self.room.strangers, 0)]:
            self._show_out(member)

    def _show_out(self, member: Member) -> None:
        self.left(member)
        member.leave()

    def _forget_stranger(self, member: Member) -> bool:
        network = self._strangers.pop(member, None)
        if network is None:
            return False
        same = self._of[network]
        del same[member]
        if not same:
            del self._of[network]
        return True

    def _leaving(self, network: str) -> Member | None:
        """Who makes room for a newcomer of ``network``. Strangers beyond their part cost nobody else his place, not
        even before they are shown out."""
        same = self._of.get(network, {})
        if len(same) >= self.room.per_address:
            return next(iter(same))
        oldest = next(iter(self._strangers), None)
        return oldest if len(self._strangers) >= self.room.strangers else self._resting() or oldest

    def _resting(self) -> Member | None:
        for _ in range(min(_TRIES, len(self._order))):
            member = self._order.popleft()
            if member in self._known:
                self._order.append(member)
                if member.rests:
                    return member
        return None


def descriptors() -> int:
    """How many file descriptors this process may have, after asking for as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST + RESERVE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS takes no more than OPEN_MAX
        return soft
    return wanted


def _network(address: str) -> str:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # a socket of the file system
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped  # as a socket that takes both kinds shows those of IPv4
    return str(mapped) if mapped else parsed.exploded[:19]
