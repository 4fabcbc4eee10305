"""Numbers of tokens, as servers write them: some as floats, some as nothing that could be one."""

from __future__ import annotations

from gateway.types import Json


def is_count(raw: Json, name: str) -> bool:
    """Whether ``name`` is a number of tokens in ``raw``, or is left out, as an answer's is for embeddings."""
    value = raw.get(name) if isinstance(raw, dict) else None
    if type(value) is int:
        return value >= 0
    return value is None or (type(value) is float and value >= 0 and value.is_integer())


def count(raw: Json, name: str) -> int:
    """0 where there is none."""
    if not isinstance(raw, dict):
        return 0
    value = raw.get(name)
    if type(value) is int:
        return max(value, 0)
    return int(value) if type(value) is float and is_count(raw, name) else 0
