"""Replicas by the DNS: the addresses of a name, or the hosts, ports and weights of its SRV records (RFC 2782).

By the machine's own resolver, with its files and search domains; or by a server that is named, as Consul's is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from gateway.backoff import Backoff
from gateway.policy.members import Found
from gateway.policy.schema import Replicas
from gateway.replicas.source import address

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

log = logging.getLogger(__name__)

TIMEOUT = 5.0
"""Seconds for one question."""
_AGAIN = Backoff(1.0, most=30.0)
_NONE = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class DnsFailed(Exception):
    """The name could not be looked up; the message says why."""


class NoAddresses(DnsFailed):
    """The DNS says that there are none."""


class DnsSource:
    """``empties``: it is told where there are none, which else counts as a mistake."""

    def __init__(self, backend: str, base_url: str, replicas: Replicas, *, empties: bool = False) -> None:
        self._empties = empties
        self._backend = backend
        self._base_url = base_url
        self._replicas = replicas
        self._resolver: Resolver | None = None

    async def follow(self) -> AsyncIterator[Sequence[Found]]:
        failures = 0
        while True:
            try:
                found = await self.look()
            except DnsFailed as error:
                if self._empties and isinstance(error, NoAddresses):
                    failures = 0
                    yield []
                    await asyncio.sleep(self._replicas.every)
                    continue
                failures += 1
                if failures == 1:
                    log.warning("the replicas of backend '%s' stay as they are: %s", self._backend, error)
                await asyncio.sleep(min(self._replicas.every, _AGAIN.after(failures)))
                continue
            if failures:
                log.warning("the replicas of backend '%s' are found again", self._backend)
            failures = 0
            yield found
            await asyncio.sleep(self._replicas.every)

    async def look(self) -> Sequence[Found]:
        """At least one. Raises ``DnsFailed``."""
        replicas = self._replicas
        try:
            async with asyncio.timeout(TIMEOUT):
                if replicas.srv is not None:
                    found = await self._services(replicas.srv)
                else:
                    name = replicas.dns or ""
                    hosts = await (self._asked(name) if replicas.resolver else _by_machine(name))
                    found = [Found(address(self._base_url, host)) for host in hosts]
        except TimeoutError:
            raise DnsFailed(f"{self._name}: no answer within {TIMEOUT:g} s") from None
        if not found:
            raise NoAddresses(f"{self._name}: the name has no addresses")
        return sorted(found)

    @property
    def _name(self) -> str:
        return self._replicas.srv or self._replicas.dns or ""

    async def _asked(self, name: str) -> list[str]:
        """Of both kinds; of one, where a server does not know how to answer for the other."""
        found: list[str] = []
        failed: DnsFailed | None = None
        for kind in ("A", "AAAA"):
            try:
                found += [str(record) for record in await self._records(name, kind)]
            except DnsFailed as error:
                failed = error
        if failed is not None and not found:
            raise failed
        return found

    async def _services(self, name: str) -> list[Found]:
        """Those of the best priority: the others are for when all of these are away, which the DNS then says."""
        records = await self._records(name, "SRV")
        best = min((record.priority for record in records), default=0)
        return [
            # A weight of 0 is small, and not none.
            Found(
                address(self._base_url, str(record.target).rstrip("."), record.port),
                float(max(record.weight, 1)),
            )
            for record in records
            if record.priority == best and str(record.target) != "."
        ]

    async def _records(self, name: str, kind: str) -> list:  # type: ignore[type-arg]
        """Empty where there are none of this kind. Raises ``DnsFailed``."""
        from dns.exception import DNSException
        from dns.resolver import NXDOMAIN, NoAnswer

        try:
            resolver = self._resolver = self._resolver or _resolver(self._replicas.resolver)
            return list(await resolver.resolve(name, kind, search=self._replicas.resolver is None))
        except NoAnswer:
            return []
        except NXDOMAIN as error:
            raise NoAddresses(f"{name}: {error}") from error
        except (DNSException, OSError) as error:
            raise DnsFailed(f"{name}: {error}") from error


async def _by_machine(name: str) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        kind = NoAddresses if error.errno in _NONE else DnsFailed
        raise kind(f"{name}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise DnsFailed(f"{name}: it is no name: {error}") from error
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def _resolver(server: str | None) -> Resolver:
    from dns.asyncresolver import Resolver

    if server is None:
        return Resolver()
    host, _, port = server.rpartition(":")
    resolver = Resolver(configure=False)
    resolver.nameservers = [host.strip("[]")]
    resolver.port = int(port)
    return resolver
