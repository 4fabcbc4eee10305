"""What one step computes: the scheduler's words to the worker, and the worker's to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.logprobs import TokenLogprobs
from engine.core.request import FinishReason, Sibling
from engine.core.sampling_params import SamplingParams


@dataclass(slots=True)
class ScheduledRequest:
    """Run ``tokens``, which stand at positions ``start``, ``start + 1`` …, through the model.

    The last ``drafts`` of them are guesses: the worker draws after the token before the first guess and after each
    guess, and keeps what it drew up to and including the first one that is not as guessed.
    """

    request_id: int
    tokens: list[int]
    start: int
    blocks: list[int]
    """The request's block table, long enough for the new tokens and for ``room`` more."""
    sampling: SamplingParams | None
    """Set when the last of ``tokens``, guesses aside, is the request's last: then one more is to be drawn after it."""
    generating: bool
    """Whether the prompt was already computed before this step. For the figures alone: it changes no result."""
    history: list[int] = field(default_factory=list)
    """All tokens of the request, guesses aside: prompt, then answer. The scheduler's own list: only to be read."""
    prompt_length: int = 0
    num_draft_tokens: int = 0
    lookahead: int = 0
    """Most guesses that the worker may make for the next step: none where nothing is drawn."""
    siblings: list[Sibling] = field(default_factory=list)
    """Those that begin with this step. Their first tokens are drawn beside this request's."""
    adapter: str | None = None
    """The LoRA adapter that the request asks for."""
    scores: int | None = None
    """Set where the prompt's tokens behind these are to be scored: so many likely ones are told beside each."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(slots=True)
class Plan:
    requests: list[ScheduledRequest] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): blocks to be copied before anything is computed, since who writes next shares the first."""
    admitted: list[int] = field(default_factory=list)
    """Requests scheduled for the first time."""
    preempted: list[int] = field(default_factory=list)
    expired: list[tuple[int, float]] = field(default_factory=list)
    """Requests dropped because their deadline passed while they waited, and the seconds that each would need yet."""
    ended: list[int] = field(default_factory=list)
    """Requests that ended or were aborted since the last plan: the worker may forget what it keeps of them."""
    hit_tokens: int = 0
    """Tokens that requests admitted in this step need not compute, as the prefix cache has them."""

    @property
    def tokens(self) -> int:
        return sum(len(scheduled.tokens) for scheduled in self.requests)


@dataclass(slots=True)
class SamplerOutput:
    """What the worker has drawn, by request; siblings that begin have entries of their own."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    """One token or, where guesses came true, several."""
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """For those that ask for them, one for each of their tokens."""
    draft_tokens: dict[int, list[int]] = field(default_factory=dict)
    """Guesses for the next step, at most ``Work.lookahead`` of them."""
    scores: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """Of the prompts' tokens behind those of works that ask for it."""
    late: set[int] = field(default_factory=set)
    """Requests for which nothing could be drawn in time: they go without, and their last token is computed again."""
    failed: dict[int, str] = field(default_factory=dict)
    """Requests whose answers cannot go on, and why."""


@dataclass(slots=True)
class RequestOutput:
    """What one request gained in a step."""

    request_id: int
    tokens: list[int]
    finish: FinishReason | None
    logprobs: list[TokenLogprobs] | None = None
    """One for each of ``tokens``, where the request asks for them."""
    cached: int = 0
    """With a request's first tokens: those of its prompt that the prefix cache had."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """With a request's first tokens, where it asks for them: one for each token of its prompt but the first."""
