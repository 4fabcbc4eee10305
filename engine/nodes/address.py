"""``host:port``, as ``--nodes`` and ``--listen`` have it."""

from __future__ import annotations

from typing import NamedTuple

from engine.errors import StartupError


class Address(NamedTuple):
    host: str
    """A name or an address; IPv6 without its brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, flag: str) -> Address:
    """Raises ``StartupError``, which names ``flag``."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    fits = port.isascii() and port.isdecimal() and 0 < int(port) <= 65535
    if not colon or not host or (":" in host and not bracketed) or not fits:
        raise StartupError(f"{flag} takes HOST:PORT, such as 10.0.0.2:7100 or [fd00::2]:7100, not {text!r}.")
    return Address(host, int(port))


def parse_addresses(text: str, flag: str) -> tuple[Address, ...]:
    """Several, with commas between them. Raises ``StartupError``."""
    found = tuple(parse_address(one, flag) for one in text.split(","))
    if twice := next((one for one in found if found.count(one) > 1), None):
        raise StartupError(f"{flag} names {twice} twice: each address is one rank.")
    return found
