"""An adapter, and how it is named."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ID = re.compile(r"adapter-[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Adapter:
    id: str
    """``adapter-`` and 32 hexadecimal digits, later ones greater; also the name by which servers know it. It is never
    used for other contents, so that no server can take one adapter for another."""
    tenant: str
    name: str
    base: str
    """The public model that it adapts."""
    rank: int
    """The highest of its layers."""
    targets: tuple[str, ...]
    """The last components of its layers' names."""
    bytes: int
    """Of the weights."""
    sha256: str
    """Of the weights, in hexadecimal digits."""
    archive: str
    """The id of the file that holds it (``gateway.adapters.archive``)."""
    archive_sha256: str
    archive_bytes: int
    created_at: int
    """Unix time."""
    key_id: str
    """Of the key that it came with."""
    shared_with: tuple[str, ...] = ()
    """Other tenants that may ask it."""

    @property
    def model(self) -> str:
        """What callers ask for."""
        return f"{self.base}:{self.name}"

    def is_for(self, tenant: str) -> bool:
        return tenant == self.tenant or tenant in self.shared_with


def new_id() -> str:
    return f"adapter-{time.time_ns():016x}{secrets.token_hex(8)}"


def is_adapter_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_adapter_name(text: str) -> bool:
    """Letters, digits and ``._-``: no colon, so that the last one of ``base:adapter`` divides them. An id is none."""
    return _NAME.fullmatch(text) is not None and not is_adapter_id(text)
