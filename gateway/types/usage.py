"""Tokens, as they are thought of and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.apis import Units
from gateway.policy.schema import Target
from gateway.types.json_value import Json
from gateway.value import value

MOST_TOKENS = 10**8
"""Of one kind in one answer: more than any model takes or gives. What claims more is not believed."""


@value
class Usage:
    """Tokens counted by whoever ran the model.

    ``cached`` (read from the provider's prompt cache) and ``cache_write`` (put into it) are parts of ``prompt``,
    ``reasoning`` is one of ``completion``. ``cache_write_1h`` is the part of ``cache_write`` that is kept for an hour.
    """

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    more: Mapping[str, Json] | None = field(default=None, compare=False)
    """What else a server with OpenAI's API reports of it, for callers who speak that dialect: figures of other kinds,
    costs, times. Nothing is billed by it but sound (``audio``)."""
    units: Units | None = None
    """What an API counts that does not, or not only, count tokens."""

    @property
    def audio(self) -> int:
        """Tokens of the prompt that are sound, where the server tells them."""
        details = None if self.more is None else self.more.get("prompt_tokens_details")
        tokens = details.get("audio_tokens") if isinstance(details, Mapping) else None
        return min(tokens, self.prompt) if type(tokens) is int and tokens > 0 else 0

    @property
    def believable(self) -> bool:
        counts = (
            self.prompt,
            self.completion,
            self.cached,
            self.reasoning,
            self.cache_write,
            self.cache_write_1h,
            0 if self.units is None else self.units.amount,
        )
        return max(counts) <= MOST_TOKENS

    @property
    def possible(self) -> Usage | None:
        """As a server claims it, but no part is more than its whole; None where nobody can believe it."""
        if not self.believable:
            return None
        if (
            self.cached + self.cache_write > self.prompt
            or self.cache_write_1h > self.cache_write
            or self.reasoning > self.completion
        ):
            cached = min(self.cached, self.prompt)
            written = min(self.cache_write, self.prompt - cached)
            return replace(
                self,
                cached=cached,
                cache_write=written,
                cache_write_1h=min(self.cache_write_1h, written),
                reasoning=min(self.reasoning, self.completion),
            )
        return self


@dataclass(slots=True)
class TokenEstimate:
    """How many tokens a request is thought to need. Not frozen, which would double the cost of making one."""

    prompt: int
    expected: int
    """Tokens of the answer, all ``n`` choices together, as learned."""
    reserved: int
    """Tokens of the answer to hold in reserve: the declared cap times ``n``, or the expectation where none is."""


Purpose = Literal["answer", "step", "attempt", "shadow", "judge", "verifier", "evaluation"]
"""What something was asked for: the answer; a cascade's step whose answer was discarded; an attempt that failed or was
broken off; a copy for a shadow model; a guard's judge; a check of an answer; a score of one that was given."""


@value
class UpstreamUsage:
    """Tokens used up by one attempt, whether or not its answer reached the caller."""

    target: Target
    usage: Usage
    estimated: bool = False
    """Counted by the gateway, as the backend did not report it."""
    purpose: Purpose = "answer"
    model: str = ""
    """The public model whose target it is."""
