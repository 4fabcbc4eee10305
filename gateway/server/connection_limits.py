"""Limits on the connections of a worker: in total, unauthenticated, and per address.

A connection is unauthenticated until one of its requests has shown a valid key. Beyond the limit on those the oldest
are closed: an honest client authenticates within a moment, and new clients are not refused because of idle ones.
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
"""Connections, whatever the limit of file descriptors is."""
GRACE = 0.1
"""Seconds in which unauthenticated connections may exceed their limit, within the total: many may open at once, before
their first request is read."""
_TRIES = 32
"""Connections that are checked, at most, for an idle one."""


class LimitedConnection(Protocol):
    @property
    def address(self) -> str:
        """Of the peer."""
        ...

    @property
    def idle(self) -> bool:
        """It is between two requests, or sends one very slowly."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    total: int
    unauthenticated: int
    per_address: int
    """Unauthenticated ones from one address; an IPv6 /64 counts as one, as it usually has one owner."""

    @classmethod
    def of(
        cls, total: int = 0, unauthenticated: int = 0, per_address: int = 0, *, descriptors: int
    ) -> ConnectionLimits:
        """0 means the default: half of the ``descriptors`` besides ``RESERVE``, as the other half is for upstream
        connections; half of the total for unauthenticated ones; and half of those for one address."""
        fitting = min(max((descriptors - RESERVE) // 2, FEWEST), MOST)
        total = min(total or fitting, fitting)
        unauthenticated = min(unauthenticated or max(total // 2, 1), total)
        return cls(total, unauthenticated, min(per_address or max(unauthenticated // 2, 1), unauthenticated))


class ConnectionLimiter:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._unauthenticated: dict[LimitedConnection, str] = {}
        """Their networks; the oldest first."""
        self._by_network: dict[str, dict[LimitedConnection, None]] = {}
        """Unauthenticated ones by network; the oldest first."""
        self._authenticated: set[LimitedConnection] = set()
        self._order: deque[LimitedConnection] = deque()
        """Authenticated ones, and some that have closed since; those checked longest ago are at the left."""
        self._eviction: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._unauthenticated) + len(self._authenticated)

    def enter(self, connection: LimitedConnection) -> bool:
        """Whether the connection is accepted; another may be closed for it."""
        network = _network(connection.address)
        if len(self) >= self.limits.total:
            victim = self._victim(network)
            if victim is None:
                return False
            self._close(victim)
        self._unauthenticated[connection] = network
        same = self._by_network.setdefault(network, {})
        same[connection] = None
        exceeded = (
            len(same) > self.limits.per_address or len(self._unauthenticated) > self.limits.unauthenticated
        )
        if exceeded and self._eviction is None:
            self._eviction = asyncio.get_running_loop().call_later(GRACE, self._evict)
        return True

    def authenticated(self, connection: LimitedConnection) -> None:
        """One of its requests has shown a valid key."""
        if self._forget_unauthenticated(connection):
            self._authenticated.add(connection)
            self._order.append(connection)

    def closed(self, connection: LimitedConnection) -> None:
        self._forget_unauthenticated(connection)
        self._authenticated.discard(connection)
        if len(self._order) > 2 * len(self._authenticated) + _TRIES:
            self._order = deque(one for one in self._order if one in self._authenticated)

    def _evict(self) -> None:
        self._eviction = None
        for same in [*self._by_network.values()]:
            for connection in [*same][: max(len(same) - self.limits.per_address, 0)]:
                self._close(connection)
        for connection in [*self._unauthenticated][
            : max(len(self._unauthenticated) - self.limits.unauthenticated, 0)
        ]:
            self._close(connection)

    def _close(self, connection: LimitedConnection) -> None:
        self.closed(connection)
        connection.abort()

    def _forget_unauthenticated(self, connection: LimitedConnection) -> bool:
        network = self._unauthenticated.pop(connection, None)
        if network is None:
            return False
        same = self._by_network[network]
        del same[connection]
        if not same:
            del self._by_network[network]
        return True

    def _victim(self, network: str) -> LimitedConnection | None:
        """The connection to close for a new one of ``network``. Unauthenticated ones beyond their limit cost no
        other its slot, not even before they are evicted."""
        same = self._by_network.get(network, {})
        if len(same) >= self.limits.per_address:
            return next(iter(same))
        oldest = next(iter(self._unauthenticated), None)
        return oldest if len(self._unauthenticated) >= self.limits.unauthenticated else self._idle() or oldest

    def _idle(self) -> LimitedConnection | None:
        for _ in range(min(_TRIES, len(self._order))):
            connection = self._order.popleft()
            if connection in self._authenticated:
                self._order.append(connection)
                if connection.idle:
                    return connection
        return None


def descriptors() -> int:
    """How many file descriptors this process may have, after raising its soft limit as far as allowed."""
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
