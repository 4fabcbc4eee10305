"""Pages of a response's input (https://platform.openai.com/docs/api-reference/responses/input-items)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire.responses.items import Item

PAGE, LARGEST_PAGE = 20, 100


def write_page(items: Sequence[Item], query: Mapping[str, str]) -> dict[str, Json]:
    """``limit`` items after the one of id ``after``, the latest first unless ``order`` is ``asc``. Raises
    ``BadRequest``.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _invalid("order", "should be asc or desc")
    found = list(items) if order == "asc" else list(reversed(items))
    if (after := query.get("after")) is not None:
        places = [i for i, item in enumerate(found) if item["id"] == after]
        if not places:
            raise _invalid("after", "should be the id of an item that was listed")
        found = found[places[0] + 1 :]
    page = found[: _limit(query.get("limit"))]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(page) < len(found),
    }


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= LARGEST_PAGE):
        raise _invalid("limit", f"should be a number from 1 to {LARGEST_PAGE}")
    return int(text)


def _invalid(name: str, what: str) -> BadRequest:
    return BadRequest(f"'{name}' {what}.", param=name, code="invalid_value")
