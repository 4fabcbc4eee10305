"""What tokens cost, by the policy's price table, in whole nano-dollars (10^-9 US$), rounded up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import orjson

from gateway.metering.unit_price import UnitRates
from gateway.policy.prices import price_of as price_of
from gateway.policy.schema import Policy, Price, Target
from gateway.types import ChatRequest, Json, Usage

NANO = 10**9
_PICO_PER_NANO = 1000


def cost(policy: Policy, target: Target, usage: Usage) -> int:
    """Nano-dollars for ``usage`` at ``target``; 0 where its price is not known, see ``price_of``."""
    price = price_of(policy, target)
    return 0 if price is None else priced(price, usage)


def priced(price: Price, usage: Usage) -> int:
    return _tokens(price, usage) + (0 if usage.units is None else UnitRates.of(price).cost(usage.units))


def _tokens(price: Price, usage: Usage) -> int:
    sound = 0 if price.audio_input is None else usage.audio
    if not (usage.cached or usage.cache_write or usage.reasoning or sound):
        return _up(usage.prompt * _rate(price.input) + usage.completion * _rate(price.output))
    cached = min(usage.cached, usage.prompt)
    written = min(usage.cache_write, usage.prompt - cached)
    hour = min(usage.cache_write_1h, written)
    reasoning = min(usage.reasoning, usage.completion)
    # Of what was cached nobody tells how much was sound: none, as that is dearer.
    sound = min(sound, usage.prompt - cached - written)
    pico = (
        (usage.prompt - cached - written - sound) * _rate(price.input)
        + sound * _rate(price.audio_input or 0)
        + (written - hour) * _rate(_written(price))
        + hour * _rate(_written_1h(price))
        + cached * _rate(_cached(price))
        + (usage.completion - reasoning) * _rate(price.output)
        + reasoning * _rate(_reasoning(price))
    )
    return _up(pico)


def discounted(nanodollars: int, factor: float) -> int:
    """A share of a price, rounded up as prices are."""
    return nanodollars if factor == 1.0 else math.ceil(nanodollars * factor)


class Rates(NamedTuple):
    """Pico-dollars a token."""

    prompt: int
    answer: int
    written: int = 0
    """A prompt's, where all of it may go into the provider's prompt cache."""
    sound: int = 0
    """A prompt's that is all sound, where that has a price of its own."""

    def with_sound(self) -> Rates:
        """A bound where the prompt may be sound in part."""
        return Rates(max(self.prompt, self.sound), self.answer, max(self.written, self.sound), self.sound)

    def times(self, factor: float) -> Rates:
        return self if factor == 1.0 else Rates(*(math.ceil(rate * factor) for rate in self))

    def cost(self, prompt: int, answer: int, *, written: bool = False) -> int:
        """Nano-dollars for tokens of a prompt and of an answer."""
        return _up(prompt * (self.written if written else self.prompt) + answer * self.answer)

    def answers_for(self, nanodollars: int, prompt: int, *, written: bool = False) -> float:
        """Tokens of an answer that ``nanodollars`` pay for beside the prompt; negative where not even for that."""
        left = nanodollars * _PICO_PER_NANO - prompt * (self.written if written else self.prompt)
        if left < 0:
            return -1
        return left // self.answer if self.answer else math.inf


def writes_cache(request: ChatRequest) -> bool:
    """Whether the caller marks what the provider is to keep; that costs more than to read it once."""
    asked: list[Json]
    if request.native is not None:
        asked = [request.native.body]
    else:
        # A mark is a field of a part of a content, or of a tool: none is in plain texts and figures.
        asked = []
        for message in request.messages or ():
            if len(message) > 2 or type(message.get("content")) is not str:
                asked.append(message)
        for given in request.params.values():
            if isinstance(given, _CONTAINERS):
                asked.append(given)
        if not asked:
            return False
    try:
        return _MARK in orjson.dumps(asked, default=dict)
    except orjson.JSONEncodeError:
        return True


_MARK = b'"cache_control":{'
_CONTAINERS = (dict, list, tuple)


def dearest(rates: Iterable[Rates]) -> Rates:
    """A bound on all of them: one may have the dearer prompts and another the dearer answers."""
    known = [*rates] or [Rates(0, 0)]
    return Rates(*(max(kind) for kind in zip(*known, strict=True)))


def at_most(price: Price | None) -> Rates:
    """The dearest that its tokens can be; nothing where no price is known."""
    if price is None:
        return Rates(0, 0)
    return Rates(
        _rate(max(price.input, _cached(price))),
        _rate(max(price.output, _reasoning(price))),
        _rate(max(price.input, _cached(price), _written(price), _written_1h(price))),
        0 if price.audio_input is None else _rate(price.audio_input),
    )


def _cached(price: Price) -> float:
    return price.input if price.cached_input is None else price.cached_input


def _written(price: Price) -> float:
    return price.input * 1.25 if price.cache_write is None else price.cache_write


def _written_1h(price: Price) -> float:
    return price.input * 2 if price.cache_write_1h is None else price.cache_write_1h


def _reasoning(price: Price) -> float:
    return price.output if price.reasoning is None else price.reasoning


def _rate(dollars_per_million: float) -> int:
    # Whole pico-dollars a token: sums are exact, whatever float a price is.
    return round(dollars_per_million * 1e6)


def _up(pico: int) -> int:
    return -(-pico // _PICO_PER_NANO)
