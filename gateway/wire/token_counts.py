"""Numbers of tokens, as servers write them: some as floats, some as nothing that could be one."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.types import Json

_LARGEST = 2.0**63
"""That JSON is written with."""


def counted(value: Json) -> int | None:
    """``value`` as a number of tokens; 0 where there is none, None where it is something else."""
    if type(value) is int:
        return value if value >= 0 else None
    if value is None:
        return 0
    return int(value) if type(value) is float and 0 <= value < _LARGEST and value.is_integer() else None


def fields(raw: Json) -> Mapping[str, Json]:
    """Those of a server's figures; none where they are something else: a good answer is not lost over them."""
    return raw if isinstance(raw, dict) else {}


def is_count(raw: Json, name: str) -> bool:
    """Whether ``name`` is a number of tokens in ``raw``, or is left out, as an answer's is for embeddings."""
    return counted(raw.get(name) if isinstance(raw, dict) else None) is not None


def count(raw: Json, name: str) -> int:
    """0 where there is none."""
    return (counted(raw.get(name)) or 0) if isinstance(raw, dict) else 0
