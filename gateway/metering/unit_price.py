"""What sound, spoken text, pictures and searches cost, by the policy's price table, in nano-dollars, rounded up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from gateway.apis import Unit, Units
from gateway.policy.schema import Price

_SIZE = re.compile(r"\d+x\d+")
_UNKNOWN = ("", "auto")
_PICO = 10**12
_PICO_PER_NANO = 1000
_LOTS: Mapping[Unit, int] = {"second": 60, "character": 10**6, "search": 1000, "image": 1}
"""So many of each have a price in the table."""


class UnitRates(NamedTuple):
    """One price's; pico-dollars for as many as have a price, None where the table has none."""

    minute: int | None = None
    million_characters: int | None = None
    thousand_searches: int | None = None
    images: tuple[tuple[str, int], ...] = ()
    """By quality and size, by one of them, or ``*``."""

    @classmethod
    def of(cls, price: Price) -> UnitRates:
        images = price.image if isinstance(price.image, dict) else {"*": price.image}
        return cls(
            _pico(price.minute),
            _pico(price.million_characters),
            _pico(price.thousand_searches),
            tuple((kind, pico) for kind, each in images.items() if (pico := _pico(each)) is not None),
        )

    def has(self, unit: Unit) -> bool:
        return bool(self.images) if unit == "image" else self._rate(unit) is not None

    def cost(self, units: Units) -> int:
        """Nano-dollars; 0 where there is no price for the unit. Of pictures of an unknown kind, the dearest that it
        may be."""
        rate = self._picture(units.kind) if units.unit == "image" else self._rate(units.unit)
        if not rate:
            return 0
        # Amounts are floats: what is beyond a millionth of a unit is no part of any bill.
        lots = _LOTS[units.unit]
        return -(-round(units.amount * 10**6) * rate // (lots * 10**6 * _PICO_PER_NANO))

    def _rate(self, unit: Unit) -> int | None:
        return {
            "second": self.minute,
            "character": self.million_characters,
            "search": self.thousand_searches,
        }.get(unit)

    def _picture(self, kind: str) -> int:
        known = dict(self.images)
        if kind in known:
            return known[kind]
        quality, _, size = kind.partition(" ")
        possible = [pico for name, pico in self.images if _may_be(name, quality, size)]
        return max(possible, default=known.get("*", max(known.values(), default=0)))


def _may_be(name: str, quality: str, size: str) -> bool:
    """Whether ``name`` may be the price of a picture; of an unknown quality or size, each may be."""
    if name == "*":
        return quality in _UNKNOWN or size in _UNKNOWN
    words = ((word, size if _SIZE.fullmatch(word) else quality) for word in name.split(" "))
    return all(asked in (word, *_UNKNOWN) for word, asked in words)


def _pico(dollars: float | None) -> int | None:
    return None if dollars is None else math.ceil(round(dollars * _PICO, 3))
