"""Pages of a response's input (https://platform.openai.com/docs/api-reference/responses/input-items)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import orjson

from gateway.errors import BadRequest

PAGE, LARGEST_PAGE = 20, 100


class Listed(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Listed)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: Sequence[T]
    more: bool

    def write(self, items: Sequence[bytes]) -> bytes:
        """``items`` are these, as JSON."""
        ends = [self.items[at].id if self.items else None for at in (0, -1)]
        first, last = map(orjson.dumps, ends)
        return b'{"object":"list","data":[%b],"first_id":%b,"last_id":%b,"has_more":%b}' % (
            *(b",".join(items), first, last),
            b"true" if self.more else b"false",
        )


def page_of(items: Sequence[T], query: Mapping[str, str]) -> Page[T]:
    """``limit`` items after the one of id ``after``, the latest first unless ``order`` is ``asc``. Raises
    ``BadRequest``.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise _invalid("order", "should be asc or desc")
    found = list(items) if order == "asc" else list(reversed(items))
    if (after := query.get("after")) is not None:
        place = next((i for i, item in enumerate(found) if item.id == after), None)
        if place is None:
            raise _invalid("after", "should be the id of an item that was listed")
        found = found[place + 1 :]
    limit = _limit(query.get("limit"))
    return Page(found[:limit], len(found) > limit)


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= LARGEST_PAGE):
        raise _invalid("limit", f"should be a number from 1 to {LARGEST_PAGE}")
    return int(text)


def _invalid(name: str, what: str) -> BadRequest:
    return BadRequest(f"'{name}' {what}.", param=name, code="invalid_value")
