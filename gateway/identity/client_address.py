"""The address of a request's client, behind proxies that the policy trusts."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.types import Scope

Address = IPv4Address | IPv6Address
Networks = tuple[IPv4Network | IPv6Network, ...]


def networks(texts: Iterable[str]) -> Networks:
    return tuple(map(ip_network, texts))


def within(address: Address, networks: Networks) -> bool:
    return any(address in network for network in networks)


class ClientAddress:
    """``trusted`` are the proxies whose ``X-Forwarded-For`` is believed."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._trusted = networks(trusted)

    def of(self, scope: Scope) -> Address | None:
        """The peer; behind a trusted proxy the rightmost forwarded address that is no trusted proxy itself.

        Anything to the left of that address may be forged. None where the address is unknown.
        """
        peer = scope.get("client")
        address = _parsed(peer[0]) if peer else None
        if address is None or not within(address, self._trusted):
            return address
        for hop in reversed(_forwarded(scope)):
            address = _parsed(hop)
            if address is None or not within(address, self._trusted):
                return address
        return address


def _forwarded(scope: Scope) -> list[str]:
    lines = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return [hop for hop in (part.strip() for part in str(b",".join(lines), "latin-1").split(",")) if hop]


def _parsed(text: str) -> Address | None:
    """An address as proxies write it: bare, or with a port."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A socket that takes both kinds shows IPv4 peers as ::ffff:a.b.c.d.
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
