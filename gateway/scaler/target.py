"""What a ScaledObject asks for, from the ``metadata`` of its trigger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gateway.scaler.history import LONGEST_LEAD


class BadMetadata(ValueError):
    """Says what is wrong, and what to write."""


@dataclass(frozen=True, slots=True)
class Target:
    backend: str
    """Its name in the gateways' policy."""
    gateways: str
    """``host:port`` of their metrics: each address of that name is a gateway."""
    requests: float
    """In flight or waiting, that one engine is to have."""
    engines: str = ""
    """``host:port`` of the engines, each by an address of its own; empty: only demand counts."""
    kv_usage: float = 0.85
    """Of KV blocks, on the mean of all engines."""
    queue_seconds: float = 0.0
    """The mean wait in the backend's queue above which there are too few engines; 0: waits do not count."""
    lead: float = 180.0
    """Seconds until a new engine serves, until that was measured."""
    forecast: bool = True

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> Target:
        """Raises ``BadMetadata``. KEDA adds ``scalerAddress`` and others of its own, which are left alone."""
        values: dict[str, object] = {}
        for name, (field, kind) in _KEYS.items():
            if (text := metadata.get(name, "").strip()) == "":
                continue
            try:
                values[field] = kind(text)
            except (ValueError, KeyError):
                raise BadMetadata(f"{name}: '{text}' cannot be read; {_KINDS[kind]}") from None
        missing = [name for name, (field, _) in _KEYS.items() if field in _NEEDED and field not in values]
        if missing:
            raise BadMetadata(f"the trigger's metadata lack {', '.join(missing)}")
        return cls(**values)  # type: ignore[arg-type]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(text)
    return value


def _lead(text: str) -> float:
    value = float(text)
    if not 0 < value <= LONGEST_LEAD:
        raise ValueError(text)
    return value


def _place(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not 0 < int(port) < 65536 or "/" in text:
        raise ValueError(text)
    return text


def _yes(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_KEYS: Mapping[str, tuple[str, Callable[[str], object]]] = MappingProxyType(
    {
        "backend": ("backend", str),
        "gateways": ("gateways", _place),
        "requestsPerReplica": ("requests", _positive),
        "engines": ("engines", _place),
        "kvUsage": ("kv_usage", _positive),
        "queueSeconds": ("queue_seconds", _positive),
        "leadSeconds": ("lead", _lead),
        "forecast": ("forecast", _yes),
    }
)
_NEEDED = frozenset(("backend", "gateways", "requests"))
_KINDS: Mapping[Callable[[str], object], str] = MappingProxyType(
    {
        str: "write a name",
        _place: "write HOST:PORT",
        _positive: "write a number above 0",
        _lead: f"write a number of seconds above 0, up to {LONGEST_LEAD:.0f}",
        _yes: "write true or false",
    }
)
