"""Reading parts of a policy's plain content, which may be invalid: whatever has the wrong type counts as absent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any


def mapping_at(content: Any, key: str) -> dict[str, Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, dict) else {}


def list_at(content: Any, key: str) -> list[Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, list) else []


def mappings_at(content: Any, key: str) -> dict[str, dict[str, Any]]:
    """The entries of the mapping at ``key`` that are mappings themselves."""
    return {name: value for name, value in mapping_at(content, key).items() if isinstance(value, dict)}


_GLOB = frozenset("*?[")


def is_pattern(name: str) -> bool:
    """Whether it may match several models, some of which may be added later."""
    return not _GLOB.isdisjoint(name)


def may_be_adapter(name: str, models: Collection[str], adapters: object) -> bool:
    """Whether a name or pattern may mean ``base:adapter``, which comes and goes: ``adapters`` are the policy's, if
    any."""
    base = name.rpartition(":")[0]
    return bool(adapters) and any(fnmatchcase(one, base) for one in models)


def aliases_of(models: Mapping[str, Any]) -> Iterator[str]:
    """Every alias in a policy's ``models``."""
    for model in models.values():
        yield from (alias for alias in list_at(model, "aliases") if isinstance(alias, str))
