"""Numbers of tokens, as servers write them: some as floats, some as nothing that could be one."""

from __future__ import annotations

from gateway.types import Json


def is_count(raw: Json, name: str) -> bool:
    """Whether ``name`` is a number of tokens in ``raw``, or is left out, as an answer's is for embeddings."""
    value = raw.get(name) if isinstance(raw, dict) else None
    return value is None or (type(value) in (int, float) and value >= 0 and float(value).is_integer())


def count(raw: Json, name: str) -> int:
    """0 where there is none."""
    return int(raw.get(name) or 0) if isinstance(raw, dict) and is_count(raw, name) else 0
