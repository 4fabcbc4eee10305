"""What YAML makes of a text, as JSON has it: names are texts, days and bytes too, and nothing goes on for ever."""

from __future__ import annotations

from typing import Any

from gateway.lab.migration.draft import ConfigError

_DEEPEST, _MOST = 50, 1_000_000


def plain(content: Any) -> Any:
    """Raises ``ConfigError`` where aliases make it endless, or so large that nobody wrote it."""
    return _plain(content, 0, [_MOST])


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth > _DEEPEST or left[0] < 0:
        raise ConfigError(
            "the configuration is nested too deeply or too large: aliases (`*name`) may repeat it"
        )
    if isinstance(value, dict):
        return {str(name): _plain(one, depth + 1, left) for name, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one, depth + 1, left) for one in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
