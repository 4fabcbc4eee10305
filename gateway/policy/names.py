"""Names of models in a policy's plain content, valid or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.policy.content import list_at

_GLOB = frozenset("*?[")


def is_pattern(name: str) -> bool:
    """Whether it may match several models, some of which may be added later."""
    return not _GLOB.isdisjoint(name)


def aliases_of(models: Mapping[str, Any]) -> Iterator[str]:
    """Every alias in a policy's ``models``."""
    for model in models.values():
        yield from (alias for alias in list_at(model, "aliases") if isinstance(alias, str))
