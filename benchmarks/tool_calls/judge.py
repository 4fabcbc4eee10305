"""What counts as a right answer: calls and JSON beside what is expected of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def matches(value: Any, wanted: Any) -> bool:
    """Objects may have more than is wanted, lists may not. ``{"has": text}``: contains it; ``{"any": […]}``: equals
    one of these. Texts are compared without regard to case and to white space or a period around them."""
    if isinstance(wanted, Mapping):
        if wanted.keys() == {"has"}:
            return isinstance(value, str) and wanted["has"].casefold() in value.casefold()
        if wanted.keys() == {"any"}:
            return any(matches(value, one) for one in wanted["any"])
        return isinstance(value, Mapping) and all(
            name in value and matches(value[name], one) for name, one in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(matches(one, other) for one, other in zip(value, wanted, strict=True))
        )
    if isinstance(wanted, str):
        return isinstance(value, str) and _plain(value) == _plain(wanted)
    if isinstance(wanted, bool) or isinstance(value, bool):
        return value is wanted
    return bool(value == wanted)


def right_calls(calls: Sequence[tuple[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Each wanted call was made, in any order, and no other."""
    left = list(calls)
    for one in wanted:
        found = next(
            (call for call in left if call[0] == one["name"] and matches(call[1], one["arguments"])),
            None,
        )
        if found is None:
            return False
        left.remove(found)
    return not left


def _plain(text: str) -> str:
    return text.strip().rstrip(".").casefold()
