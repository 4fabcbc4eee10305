"""What one request used: as the model's server says, or, where it did not get to say, as the gateway counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from gateway.errors import GatewayError
from gateway.quota.estimate import CHARACTERS_PER_TOKEN
from gateway.quota.price import price_of, priced
from gateway.types import Call, Chunk, Json, Spending, Usage

NOTHING = Usage(0, 0)


class Bill(NamedTuple):
    usage: Usage
    """Of the answer."""
    nanodollars: int
    """Of all attempts."""
    estimated: bool
    unpriced: tuple[str, ...]
    """Models that took part and have no entry in the price table."""


class Tally:
    """Counts an answer as it goes by."""

    __slots__ = ("characters", "pieces", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.pieces = 0
        """Chunks that held a part of the answer; a token each, if not more."""
        self.characters = 0

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        if delta := chunk.delta:
            content = delta.get("content")
            size = len(content) if isinstance(content, str) else 0
            if not size or len(delta) > 1:
                size += _others(delta)
            if size:
                self.pieces += 1
                self.characters += size

    def bill(self, call: Call, error: BaseException | None) -> Bill:
        """``error`` is what ended the request, None for a good end. What a cache gave costs nothing."""
        if call.cached is not None:
            return Bill(NOTHING, 0, False, ())
        usage, estimated = self._usage(call, error)
        spent = call.spent
        if not spent and call.target is not None and usage is not NOTHING:
            spent = [Spending(call.target, usage)]
        nanodollars = 0
        unpriced: dict[str, None] = {}
        for one in spent:
            price = price_of(call.policy, one.target)
            if price is None:
                unpriced[f"{one.target.backend}/{one.target.model}"] = None
            else:
                nanodollars += priced(price, one.usage)
            estimated = estimated or one.estimated
        return Bill(usage, nanodollars, estimated, tuple(unpriced))

    def _usage(self, call: Call, error: BaseException | None) -> tuple[Usage, bool]:
        reported = self.usage
        if reported is not None and error is None:
            return reported, False
        if not self.pieces and reported is None and error is not None:
            # An error before the first chunk means that nothing was computed. Of a client that left then it is not
            # known how far the request had come.
            if isinstance(error, GatewayError) or call.target is None or call.demand is None:
                return NOTHING, False
            return Usage(call.demand.prompt, 0), True
        counted = max(self.pieces, -int(-self.characters // CHARACTERS_PER_TOKEN))
        if reported is None:
            return Usage(call.demand.prompt if call.demand is not None else 0, counted), True
        # A server may tell the usage as it goes along, and be cut before the last of it.
        if counted <= reported.completion:
            return reported, False
        return replace(reported, completion=counted), True


def _others(delta: Mapping[str, Json]) -> int:
    """Characters of an answer's parts that are not its content."""
    size = 0
    for name in ("reasoning_content", "reasoning", "refusal"):
        text = delta.get(name)
        if isinstance(text, str):
            size += len(text)
    for call in delta.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, dict):
            size += sum(len(text) for text in function.values() if isinstance(text, str))
    return size
