"""A policy whose backends with ``replicas`` have become one backend for each of them.

The backend itself stays, for what is said of all: prices, regions, what caches keep. Its replicas stand beside it as
``NAME@HOST:PORT``, so that each has what a backend has: a breaker, a pool, figures, connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.policy.loader import DRAINED, Loaded
from gateway.policy.schema import Policy, Replicated
from gateway.policy.schema.values import is_name

UNKNOWN = "none of its replicas is known yet"
NONE = "it has no replica now"
ALL_DRAINED = "all of its replicas are drained"


class Found(NamedTuple):
    """A server that one of the ways to find replicas has found."""

    url: str
    """As ``base_url``, without a slash at its end."""
    weight: float = 1.0
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that may be asked."""

    name: str
    """Of the backend that it is."""
    weight: float = 1.0
    zone: str | None = None


Members = Mapping[str, tuple[Member, ...]]
"""By the backend that has them, those that may be asked."""


def is_replicated(backend: object) -> bool:
    return isinstance(backend, Replicated) and backend.replicas is not None


def member_name(backend: str, url: str) -> str:
    parts = urlsplit(url)
    where = parts.netloc.translate(_NO_BRACKETS) + parts.path.rstrip("/").removesuffix("/v1")
    return f"{backend}@{where}"


def parent_of(name: str, policy: Policy) -> str | None:
    """The backend that has ``name`` as a replica, as far as the name tells; None where there is none such."""
    parent = name.rpartition("@")[0]
    return parent if is_replicated(policy.backends.get(parent)) else None


def written_beside(name: str, policy: Policy) -> tuple[str, ...]:
    """All replicas of the backend that ``name`` would be one of, where they are written down; empty where they are
    found, so that one that is not there now may come yet."""
    parent = parent_of(name, policy)
    replicas = getattr(policy.backends.get(parent or ""), "replicas", None)
    return tuple(member_name(parent or "", one.url) for one in replicas.servers) if replicas else ()


def is_replica(name: str, policy: Policy) -> bool:
    """Whether it may be one of a backend's."""
    return parent_of(name, policy) is not None and is_name(name)


def with_members(
    loaded: Loaded, found: Mapping[str, Sequence[Found]], drained: frozenset[str] = frozenset()
) -> tuple[Loaded, Members]:
    """``loaded`` where its replicas are those that were ``found``; ``drained`` are backends and replicas that are, also
    by others than the policy. The same object where neither changes anything."""
    policy, disabled = loaded.policy, dict(loaded.disabled)
    out = frozenset(policy.drained) | drained
    backends, prices = dict(policy.backends), dict(policy.prices)
    members: dict[str, tuple[Member, ...]] = {}
    for name, config in policy.backends.items():
        if name in drained:
            disabled.setdefault(name, DRAINED)
        if not (isinstance(config, Replicated) and config.replicas is not None) or name in disabled:
            continue
        servers = {member_name(name, one.url): one for one in found.get(name, ())}
        for member, server in servers.items():
            if member not in out:
                backends[member] = config.model_copy(
                    update={"base_url": server.url, "replicas": None, "cold_start": None}
                )
                prices |= {
                    member + key[len(name) :]: price
                    for key, price in policy.prices.items()
                    if key.startswith(f"{name}/")
                }
        members[name] = tuple(
            Member(member, server.weight, server.zone)
            for member, server in servers.items()
            if member in backends
        )
        if not servers and config.cold_start is not None:
            del members[name]  # it stands itself for the one that comes first
        elif not members[name]:
            disabled[name] = ALL_DRAINED if servers else NONE if name in found else UNKNOWN
    if not members and not drained:
        return loaded, members
    update = {
        "backends": backends,
        "prices": prices,
        "drained": (*policy.drained, *sorted(drained - {*policy.drained})),
    }
    return replace(loaded, policy=policy.model_copy(update=update), disabled=disabled), members


_NO_BRACKETS = str.maketrans("", "", "[]")
