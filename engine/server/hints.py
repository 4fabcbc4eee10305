"""Request headers by which a gateway passes on priority, deadline, tenant and more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

_HIGHEST = 1000
_HEAVIEST = 100.0
_LONGEST = 64
_SHARING = ("system", "all")


@dataclass(frozen=True, slots=True)
class Hints:
    priority: int = 0
    """Higher is served first."""
    weight: float = 1.0
    """How much longer than one of weight 1 its prefix is kept."""
    deadline: float | None = None
    """A ``time.monotonic()``."""
    tenant: str = ""
    """An opaque name: tenants share the engine fairly, and do not find each other's prefixes."""
    sharing: str = "none"
    """Which of its prefixes other tenants may find: ``none``, the ``system`` prompt, or ``all``."""
    refuse_over_context: bool = False
    """Refuse a ``max_tokens`` that exceeds the context, instead of clipping it."""
    prefill_at: str = ""
    """The address of an engine that can be asked for the prompt's KV blocks."""

    def salt(self, own: str | None) -> bytes:
        """The prefix cache's salt for this request; ``own``: the body's ``cache_salt``. Empty: none."""
        tenant = "" if self.sharing == "all" else self.tenant
        if not tenant and not own:
            return b""
        # The gateway's tenant always goes in first, so that no ``cache_salt`` can yield another tenant's salt.
        digest = blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        return blake2b(digest + (own or "").encode("utf-8", "surrogatepass"), digest_size=16).digest()


def read_hints(headers: Mapping[bytes, bytes], now: float) -> Hints:
    """``x-tollgate-priority`` (an integer, clamped to ±1000), ``x-tollgate-weight`` (clamped to 0.01 … 100),
    ``x-tollgate-deadline`` (seconds from ``now``), ``x-tollgate-over-context`` (``refuse``), ``x-tollgate-tenant`` (a
    name, of 64 characters at most), ``x-tollgate-prefix-sharing`` (``system`` or ``all``) and ``x-tollgate-prefill``
    (an address, as ``--handover-address`` of another engine has it).

    A value that cannot be parsed is ignored.
    """
    priority = _number(headers.get(b"x-tollgate-priority"))
    weight = _number(headers.get(b"x-tollgate-weight"))
    seconds = _number(headers.get(b"x-tollgate-deadline"))
    if priority is None or priority != int(priority):
        priority = 0
    return Hints(
        priority=max(-_HIGHEST, min(_HIGHEST, int(priority))),
        weight=1.0 if weight is None or weight <= 0 else min(_HEAVIEST, max(1 / _HEAVIEST, weight)),
        deadline=None if seconds is None else now + seconds,
        tenant=headers.get(b"x-tollgate-tenant", b"")[:_LONGEST].decode("latin-1"),
        sharing=sharing if (sharing := _text(headers, b"x-tollgate-prefix-sharing")) in _SHARING else "none",
        refuse_over_context=headers.get(b"x-tollgate-over-context") == b"refuse",
        prefill_at=_text(headers, b"x-tollgate-prefill"),
    )


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _number(value: bytes | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
