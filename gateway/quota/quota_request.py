"""What one request asks of its caller's limits: what it wants, and the least that it can be admitted with."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.media import media_in
from gateway.metering.api_bounds import bound_of
from gateway.metering.estimate import LearnedEstimate
from gateway.metering.price import Rates, writes_cache
from gateway.quota.counters import Elastic
from gateway.quota.limits import Amounts, Limits
from gateway.quota.prompt_bound import most_tokens
from gateway.quota.target_bounds import TargetBounds
from gateway.types import Call, ChatRequest

LARGEST = 16_384
"""Tokens of an answer whose length neither caller nor policy limits."""
USUAL_FACTOR = 8
"""An answer without a cap gets this many times its usual length, if that is less than ``LARGEST``; but at least"""
PLENTY = 4_096
"""tokens."""
FEWEST = 16
"""Tokens of the shortest answer that is of use."""
FEWEST_USUAL = 256
"""The usual length is taken to be at least this where the caller declares no cap, and may want a long answer."""
COMPLETION = 16
"""Tokens that OpenAI's API and its like generate where a request to ``/completions`` has no cap
(https://platform.openai.com/docs/api-reference/completions/create)."""
DIVISOR = 4
"""Without a cap a request takes, beyond its usual length, no more than a quarter of the remaining capacity;"""
DIVISOR_OF_LARGE = 8
"""with one far above its usual length, no more than an eighth: with a quarter, answers of 8 s left a sixth of each
minute unused, as what they held and did not need was released too late."""
OVERSHOOT = 2
"""Token limits that are not strict reserve half of what a request may use: usage within one window is never more than
twice the limit."""


@dataclass(slots=True)
class QuotaRequest:
    """A request, as its caller's limits see it. Every ``cap`` is in tokens of one answer."""

    prompt: int
    """Tokens, as token limits count them in advance."""
    bound: int
    """The most tokens that the prompt can have."""
    answers: int
    slots: int
    """Of the limit on concurrent answers: one for each answer; all embeddings of a request take one."""
    cap: int
    """The one wanted."""
    longest: int | None
    """No answer is longer even without a cap."""
    declared: int | None
    """The caller's own cap."""
    usual: int
    least: int
    enough: int
    """A dollar budget, which is not refilled with the next minute, only has to cover an answer of this length."""
    rates: Rates
    priced: bool
    writes: bool
    """The prompt may go into the provider's prompt cache."""
    overshoot: int
    divisor: int
    """Beyond ``usual``, it takes at most the remaining capacity divided by this."""
    fixed: int = 0
    """Nano-dollars beside all tokens: what is passed on is billed by its own units."""

    @property
    def amounts(self) -> Amounts:
        """All that the request wants."""
        return self.at(self.cap)

    @property
    def elastic(self) -> Elastic:
        usual, enough = min(self.usual, self.cap), self.enough
        least = Amounts(1, self._tokens(self.least), self._nanodollars(enough), self.slots)
        dollars = least.nanodollars if usual <= enough else self._nanodollars(usual)
        tokens = self._tokens(usual) if usual > self.least else least.tokens
        return Elastic(least, Amounts(1, tokens, dollars, self.slots), self.divisor)

    def at(self, cap: int) -> Amounts:
        """What to reserve for answers of up to ``cap`` tokens."""
        nanodollars = self._nanodollars(cap) if self.priced else 0
        return Amounts(1, self._tokens(cap), nanodollars, self.slots)

    def affords(self, held: Amounts, limits: Limits) -> int:
        """The largest cap, up to the one wanted, that ``held`` covers; negative where it does not even cover the
        prompt."""
        cap: float = self.cap
        if limits.tokens is not None:
            left = held.tokens - self.prompt
            cap = min(cap, self.overshoot * left // self.answers if self.answers else min(left, 0))
        if limits.dollars is not None:
            paid = self.rates.answers_for(held.nanodollars - self.fixed, self.bound, written=self.writes)
            cap = min(cap, paid // self.answers if self.answers else min(paid, 0))
        return int(cap)

    def _tokens(self, cap: int) -> int:
        return self.prompt - (-cap * self.answers // self.overshoot) if cap > 0 else self.prompt

    def _nanodollars(self, cap: int) -> int:
        if not self.priced:
            return 0
        return self.fixed + self.rates.cost(self.bound, cap * self.answers, written=self.writes)


def quota_request(
    call: Call, estimate: LearnedEstimate, bounds: TargetBounds, limits: Limits
) -> QuotaRequest:
    """What ``call`` asks for at a target within ``bounds``: never more than the smallest token limit allows."""
    request = call.request
    if request.api is not None:
        return _passed_on(request, estimate, bounds, limits)
    priced = limits.dollars is not None and any(bounds.rates)
    rates = bounds.rates
    if priced and rates.sound > rates.prompt and "audio" in media_in(request.messages or ()):
        rates = rates.with_sound()
    bound = most_tokens(request, bounds.media) if priced or limits.strict else estimate.prompt
    prompt = bound if limits.strict else estimate.prompt
    overshoot = 1 if limits.strict else OVERSHOOT
    answers = 0 if request.embeds else estimate.answers
    cap, longest = estimate.declared, bounds.max_answer
    floor = _least(request) if request.params else FEWEST
    if not answers:
        wanted = longest = floor = 0
    elif cap is None:
        wanted, longest = _undeclared(request, estimate, bounds)
    else:
        wanted = cap if estimate.cap is None else min(cap, -(-estimate.cap // answers))
        wanted = wanted if bounds.max_output is None else min(wanted, bounds.max_output)
    usual = max(estimate.usual, floor if cap is not None else max(floor, FEWEST_USUAL))
    least = max(floor, estimate.expected // answers * overshoot // 2) if answers and estimate.known else floor
    bucket = limits.tokens
    if bucket is not None and prompt + max(wanted, least, floor) * (answers or 1) > bucket.maximum:
        # What was learned from earlier, larger prompts is no reason to refuse this one.
        if not limits.strict:
            prompt = min(prompt, max(estimate.least, bucket.maximum + -floor * answers // overshoot))
        capacity = max(0, bucket.maximum - prompt) // max(1, answers)
        wanted, least = min(wanted, max(capacity, floor)), min(least, max(overshoot * capacity, floor))
    return QuotaRequest(
        prompt=prompt,
        bound=bound,
        answers=answers,
        slots=answers or 1,
        cap=wanted,
        longest=longest,
        declared=cap if answers else 0,
        usual=usual,
        least=min(wanted, least),
        enough=min(wanted, floor),
        rates=rates if call.line is None else rates.times(call.line.price_factor),
        priced=priced,
        writes=priced and writes_cache(request),
        overshoot=overshoot,
        divisor=DIVISOR
        if cap is None
        else DIVISOR_OF_LARGE
        if estimate.known and wanted > USUAL_FACTOR * usual
        else 1,
    )


def _passed_on(
    request: ChatRequest, estimate: LearnedEstimate, bounds: TargetBounds, limits: Limits
) -> QuotaRequest:
    """Of what is passed on: all of it or nothing, by the dearest of what it may be billed by."""
    most = bound_of(request)
    by_tokens = any(bounds.rates)
    tokens = most.prompt + most.answer if by_tokens else most.prompt if limits.strict else estimate.prompt
    heard = request.api in ("transcription", "translation")
    nanodollars = (bounds.rates.with_sound() if heard else bounds.rates).cost(most.prompt, most.answer)
    if most.free:
        tokens = nanodollars = 0
    elif most.units is not None:
        nanodollars += max((rates.cost(most.units) for rates in bounds.units), default=0)
    return QuotaRequest(
        prompt=tokens,
        bound=tokens,
        answers=0,
        slots=request.slots,
        cap=0,
        longest=0,
        declared=0,
        usual=0,
        least=0,
        enough=0,
        rates=Rates(0, 0),
        priced=limits.dollars is not None,
        writes=False,
        overshoot=1,
        divisor=1,
        fixed=nanodollars,
    )


def _undeclared(
    request: ChatRequest, estimate: LearnedEstimate, bounds: TargetBounds
) -> tuple[int, int | None]:
    """The cap to ask for, and the length that no answer exceeds without one."""
    if request.messages is None and bounds.kind in ("openai", "azure", "engine"):
        return COMPLETION, None
    if bounds.default_cap is not None:
        longest = bounds.default_cap
        match request.params.get("thinking"):
            case {"budget_tokens": int(budget)} if budget > 0:
                longest += budget
        return longest, longest
    if bounds.max_output is not None:
        return bounds.max_output, bounds.max_answer
    uncapped = LARGEST if not estimate.known else min(LARGEST, max(USUAL_FACTOR * estimate.usual, PLENTY))
    return uncapped if bounds.max_answer is None else min(uncapped, bounds.max_answer), bounds.max_answer


def _least(request: ChatRequest) -> int:
    asked = request.params.get("min_tokens")
    return max(FEWEST, asked) if type(asked) is int else FEWEST
