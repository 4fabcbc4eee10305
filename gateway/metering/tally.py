"""What one request used: as the models' servers say, or, where one did not get to say, as the gateway counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.metering.estimate import CHARACTERS_PER_TOKEN
from gateway.metering.price import price_of, priced
from gateway.policy.schema import Policy
from gateway.types import Chunk, Json, Spending, Usage

NOTHING = Usage(0, 0)
MOST_CHARACTERS_PER_TOKEN = 16
"""On average over an answer: four times what is usual. Of a run of spaces or of dashes a token may hold more."""
SHORT = 256
"""Characters of which nothing is proven."""

_THOUGHTS = frozenset({"reasoning", "reasoning_content", "redacted_thinking"})
_UNSAID = frozenset({"role", "id", "type", "index", "embedding", "signature", "data", "reasoning_details"})
"""Fields of a delta whose text no model was paid to write, or that repeat another's."""


class Tally:
    """Counts an attempt's answer as it goes by, all of its choices together."""

    __slots__ = ("_pieces", "_quarters", "_thinks", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """As the server said last."""
        self._pieces = 0
        """Chunks that held a part of the answer; a token each, if not more."""
        self._quarters = 0
        self._thinks = False
        """Thoughts were among what was said."""

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        if delta := chunk.delta:
            content = delta.get("content")
            if len(delta) == 1 and type(content) is str:
                size = _weight(content)
            else:
                size = _said(delta)
                self._thinks = self._thinks or not _THOUGHTS.isdisjoint(delta)
            if size:
                self._pieces += 1
                self._quarters += size

    @property
    def counted(self) -> int:
        """Tokens of the answer by its text; for streams at least one a piece."""
        return max(self._pieces, -int(-self._quarters // CHARACTERS_PER_TOKEN))

    @property
    def proven(self) -> int:
        """Tokens that a text of some length proves: with fewer it would be neither words nor code."""
        return (self._quarters - SHORT) // MOST_CHARACTERS_PER_TOKEN

    @property
    def told(self) -> Usage | None:
        """The server's own figures, where they are all that an answer needs that came to its own end."""
        told = self.usage
        if told is None or not told.prompt or not (told.completion or not self._pieces):
            return None
        return told if told.completion >= self.proven else None

    def of(self, prompt: int, unseen: int, *, whole: bool, thoughts: int = 0) -> tuple[Usage, bool]:
        """What it used, and whether that is estimated. ``whole``: the answer came to its own end.

        ``prompt`` is the estimate of its tokens; ``unseen`` that of an answer of which nothing came, ``thoughts`` that
        of what is thought before anything is said. Where no thoughts came they may have been kept back.
        """
        counted, told = self.counted, self.usage
        hidden = thoughts if counted and not self._thinks else 0
        if told is None or (counted and not told.prompt and not told.completion):
            return Usage(prompt, counted + hidden if counted or whole else unseen), True
        if not told.prompt or (counted and not told.completion):
            # No prompt is nothing, and nothing is said with no tokens: what the server leaves out is counted.
            return replace(told, prompt=told.prompt or prompt, completion=told.completion or counted), True
        if told.completion < self.proven:
            # It tells of the last piece alone, say, or of a part of the choices.
            return replace(told, completion=counted + hidden), True
        if whole or counted <= told.completion:
            return told, False
        # A server may tell the usage as it goes along, and be cut before the last of it.
        return replace(told, completion=counted + hidden), True


class Charge(NamedTuple):
    """A spending and its price."""

    spending: Spending
    nanodollars: int


class Bill(NamedTuple):
    """All that one request spent."""

    charges: tuple[Charge, ...] = ()
    tokens: int = 0
    nanodollars: int = 0
    estimated: bool = False
    unpriced: tuple[str, ...] = ()
    """Models that took part and have no entry in the price table."""

    @property
    def answer(self) -> Charge | None:
        """What the caller's answer itself took."""
        for one in self.charges:
            if one.spending.purpose == "answer":
                return one
        return None

    @property
    def others(self) -> tuple[Charge, ...]:
        """Everything but ``answer``."""
        answer = self.answer
        if answer is not None and len(self.charges) == 1:
            return ()
        return tuple(one for one in self.charges if one is not answer)


def bill_of(policy: Policy, spent: Sequence[Spending]) -> Bill:
    if not spent:
        return _FREE
    charges: list[Charge] = []
    tokens = nanodollars = 0
    estimated = False
    unpriced: dict[str, None] = {}
    for one in spent:
        price = price_of(policy, one.target)
        if price is None:
            unpriced[f"{one.target.backend}/{one.target.model}"] = None
        charge = Charge(one, 0 if price is None else priced(price, one.usage))
        charges.append(charge)
        tokens += one.usage.prompt + one.usage.completion
        nanodollars += charge.nanodollars
        estimated = estimated or one.estimated
    return Bill(tuple(charges), tokens, nanodollars, estimated, tuple(unpriced))


_FREE = Bill()


def _said(delta: Mapping[str, Json]) -> int:
    """Of all that a delta says: its text, a refusal, thoughts, a call's name and arguments."""
    fields: Iterable[tuple[str, Json]] = delta.items()
    if "reasoning" in delta and "reasoning_content" in delta:  # one text under two names
        fields = ((name, value) for name, value in fields if name != "reasoning")
    return sum(_size(value) for name, value in fields if value and name not in _UNSAID)


def _size(value: Json) -> int:
    if isinstance(value, str):
        return _weight(value)
    if isinstance(value, dict):
        return _said(value)
    if isinstance(value, list):
        return sum(map(_size, value))
    return 0


def _weight(text: str) -> int:
    """In characters of English. One of two bytes and more is about a token of its own, as for prompts."""
    if text.isascii():
        return len(text)
    return len(text) + 2 * (len(text.encode("utf-8", "surrogatepass")) - len(text))
