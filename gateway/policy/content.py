"""Reading parts of a policy's plain content, which may be invalid: whatever has the wrong type counts as absent."""

from __future__ import annotations

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
