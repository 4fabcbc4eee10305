"""What one request may take at one place, or at several, and what it must have at least."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.metering.estimate import LearnedEstimate, declared_cap
from gateway.metering.price import Rates, writes_cache
from gateway.quota.bounds import most_tokens
from gateway.quota.counters import Elastic
from gateway.quota.limits import Amounts, Limits
from gateway.quota.reach import Reach
from gateway.types import Call, ChatRequest

LARGEST = 16_384
"""Tokens of an answer of which neither caller nor policy says how long it may get."""
ROOMY = 8
"""Times what is usual, where that is less; but no fewer tokens than"""
PLENTY = 4_096
FEWEST = 16
"""Tokens of the shortest answer that is of use."""
FEWEST_USUAL = 256
"""Where the caller declares no cap, and may mean to be answered at length."""
COMPLETION = 16
"""What OpenAI's API and its like give where a request to ``/completions`` has no cap
(https://platform.openai.com/docs/api-reference/completions/create)."""
SHARE = 4
"""Who declares no cap takes no more than a quarter of the room, beyond what is usual;"""
SHARE_OF_LARGE = 8
"""who declares one far above what is usual, no more than an eighth: with a quarter, answers that take 8 s left a sixth
of each minute unused, as what they held and did not need came back too late."""
OVERSHOOT = 2
"""Limits of tokens that are not strict hold half of what a request may come to: what is used in the time of one limit
never comes to more than twice the limit."""


@dataclass(slots=True)
class Ask:
    """A request, as the limits of its caller see it. ``cap`` is of one answer, everywhere."""

    prompt: int
    """Tokens, as limits of tokens count them beforehand."""
    bound: int
    """The most tokens that the prompt can come to."""
    answers: int
    places: int
    """Answers that are under way at once, embeddings among them: all of a request's are one."""
    cap: int
    """What is wanted."""
    longest: int | None
    """No answer is longer even without a cap."""
    declared: int | None
    """The caller's own cap."""
    usual: int
    least: int
    enough: int
    """Of dollars, which do not come back with the next minute, an answer of this length will do."""
    rates: Rates
    priced: bool
    writes: bool
    """The prompt may go into the provider's prompt cache."""
    overshoot: int
    share: int
    """Beyond what is usual, it takes only one part in so many of the room."""

    @property
    def amounts(self) -> Amounts:
        """All that is wanted."""
        return self.at(self.cap)

    @property
    def elastic(self) -> Elastic:
        usual, enough = min(self.usual, self.cap), self.enough
        least = Amounts(1, self._tokens(self.least), self._nanodollars(enough), self.places)
        dollars = least.nanodollars if usual <= enough else self._nanodollars(usual)
        tokens = self._tokens(usual) if usual > self.least else least.tokens
        return Elastic(least, Amounts(1, tokens, dollars, self.places), self.share)

    def at(self, cap: int) -> Amounts:
        """What is held for answers of up to ``cap`` tokens."""
        return Amounts(1, self._tokens(cap), self._nanodollars(cap), self.places)

    def affords(self, held: Amounts, limits: Limits) -> int:
        """The cap that ``held`` is enough for, the one wanted at most; negative where not even for the prompt."""
        cap: float = self.cap
        if limits.tokens is not None:
            left = held.tokens - self.prompt
            cap = min(cap, self.overshoot * left // self.answers if self.answers else min(left, 0))
        if limits.dollars is not None:
            paid = self.rates.answers_for(held.nanodollars, self.bound, written=self.writes)
            cap = min(cap, paid // self.answers if self.answers else min(paid, 0))
        return int(cap)

    def _tokens(self, cap: int) -> int:
        return self.prompt + max(-(-cap * self.answers // self.overshoot), 0)

    def _nanodollars(self, cap: int) -> int:
        if not self.priced:
            return 0
        return self.rates.cost(self.bound, cap * self.answers, written=self.writes)


def ask(call: Call, estimate: LearnedEstimate, reach: Reach, limits: Limits) -> Ask:
    """Of ``call`` at a place that ``reach`` tells of. No more than the smallest bucket of tokens holds is wanted."""
    request = call.request
    priced = limits.dollars is not None and any(reach.rates)
    bound = most_tokens(request, reach.kind) if priced or limits.strict else estimate.prompt
    prompt = bound if limits.strict else estimate.prompt
    overshoot = 1 if limits.strict else OVERSHOOT
    answers = 0 if request.embeds else estimate.answers
    cap, floor, longest = declared_cap(request.params), _least(request), reach.longest
    if not answers:
        wanted = longest = floor = 0
    elif cap is None:
        wanted, longest = _undeclared(request, estimate, reach)
    else:
        wanted = cap if estimate.cap is None else min(cap, -(-estimate.cap // answers))
        wanted = wanted if reach.most is None else min(wanted, reach.most)
    usual = max(estimate.usual, floor if cap is not None else max(floor, FEWEST_USUAL))
    least = max(floor, estimate.expected // answers * overshoot // 2) if answers and estimate.known else floor
    if (bucket := limits.tokens) is not None:
        # It is no reason to refuse a request that earlier ones were too large.
        if not limits.strict:
            prompt = min(prompt, max(estimate.least, bucket.maximum + -floor * answers // overshoot))
        room = max(0, bucket.maximum - prompt) // max(1, answers)
        wanted, least = min(wanted, max(room, floor)), min(least, max(overshoot * room, floor))
    return Ask(
        prompt=prompt,
        bound=bound,
        answers=answers,
        places=request.answers,
        cap=wanted,
        longest=longest,
        declared=cap if answers else 0,
        usual=usual,
        least=min(wanted, least),
        enough=min(wanted, floor),
        rates=reach.rates,
        priced=priced,
        writes=priced and writes_cache(request),
        overshoot=overshoot,
        share=SHARE if cap is None else SHARE_OF_LARGE if estimate.known and wanted > ROOMY * usual else 1,
    )


def _undeclared(request: ChatRequest, estimate: LearnedEstimate, reach: Reach) -> tuple[int, int | None]:
    """The cap to be wanted, and the length that no answer goes beyond without one."""
    if request.messages is None and reach.kind in ("openai", "engine"):
        return COMPLETION, None
    if reach.unasked is not None:
        longest = reach.unasked
        match request.params.get("thinking"):
            case {"budget_tokens": int(budget)} if budget > 0:
                longest += budget
        return longest, longest
    if reach.most is not None:
        return reach.most, reach.longest
    roomy = LARGEST if not estimate.known else min(LARGEST, max(ROOMY * estimate.usual, PLENTY))
    return roomy if reach.longest is None else min(roomy, reach.longest), reach.longest


def _least(request: ChatRequest) -> int:
    asked = request.params.get("min_tokens")
    return max(FEWEST, asked) if type(asked) is int else FEWEST
