"""What one step computes and what it yields: the scheduler's orders to the worker, and the worker's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.draft_tree import DraftTree
from engine.core.logprobs import TokenLogprobs
from engine.core.request import FinishReason, Request, Sibling
from engine.core.sampling_params import SamplingParams

PENDING = -1
"""A token that the step before samples, or a draft token that is proposed after it, and that is not known yet."""


@dataclass(slots=True)
class ScheduledRequest:
    """Run ``tokens``, at positions ``start``, ``start + 1`` …, through the model.

    The last ``num_draft_tokens`` of them are draft tokens: the worker samples after the token before the first of them
    and after each, and keeps what it sampled up to and including the first that differs from the draft. In a plan made
    ahead the last one sampled may be ``PENDING``, and all draft tokens after it.
    """

    request_id: int
    tokens: list[int]
    start: int
    blocks: list[int]
    """The request's block table in the first group of layers, long enough for the new tokens and for ``lookahead``
    more. Blocks behind a sliding window are ``GONE``."""
    sampling: SamplingParams | None
    """Set when the last of ``tokens``, draft tokens not counted, is the request's last: then the next one is
    sampled."""
    generating: bool
    """Whether the prompt was already computed before this step. For metrics alone: it changes no result."""
    history: list[int] = field(default_factory=list)
    """All tokens of the request without draft tokens: prompt, then answer. The scheduler's own list: read-only."""
    prompt_length: int = 0
    num_draft_tokens: int = 0
    draft_parents: list[int] = field(default_factory=list)
    """Of each draft token its parent's place among them, where they form a tree; see draft_tree.py. Empty: each follows
    the one before. A tree's tokens have slots in the order that they stand in, and positions by their depth; those that
    are accepted move to their positions' slots within the step. A head computes a tree level by level: the parents are
    then of all levels so far, and ``tokens`` of the last one."""
    lookahead: int = 0
    """Most draft tokens that the worker may propose for the next step: 0 where nothing is sampled."""
    slack: int = 0
    """Draft tokens that the step before verifies, in a plan made ahead: ``start`` is where this one begins if all are
    accepted, and so many tokens earlier at most. It is put right, and this is 0, once that is known."""
    siblings: list[Sibling] = field(default_factory=list)
    """Choices that begin with this step. Their first tokens are sampled beside this request's."""
    adapter: str | None = None
    """The LoRA adapter that the request asks for."""
    prompt_logprobs: int | None = None
    """Set where the logprobs of the prompt tokens after these are wanted: so many most likely ones beside each."""
    others: Sequence[list[int]] = ()
    """The block tables in the other groups, where there are several."""
    state: int = 0
    """The request's slot in the state cache, where layers keep a state; at ``start`` 0 the state is nothing."""

    @classmethod
    def of(cls, request: Request, count: int) -> ScheduledRequest:
        """The request's next ``count`` tokens."""
        start, tokens = request.computed + request.in_flight, request.tokens
        new = tokens[start : start + count]
        # While a token is pending, all that are known are computed or about to be.
        last = start + count >= len(tokens)
        if len(new) < count:
            new += [PENDING] * (count - len(new))
        scheduled = cls(
            request.id,
            new,
            start,
            request.blocks,
            request.params if last else None,
            start >= request.prompt_length,
            tokens,
            request.prompt_length,
        )
        scheduled.adapter = request.adapter
        scheduled.others = request.others
        scheduled.state = request.state
        scheduled.slack = request.unverified
        if request.scoring:
            scheduled.prompt_logprobs = request.params.prompt_logprobs
        if last and request.siblings:
            scheduled.siblings = list(request.siblings)
        return scheduled

    @property
    def tree(self) -> DraftTree | None:
        if not self.draft_parents:
            return None
        return DraftTree(self.tokens[len(self.tokens) - self.num_draft_tokens :], self.draft_parents)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(slots=True)
class Plan:
    requests: list[ScheduledRequest] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): blocks to copy before anything is computed, as the first is shared and is about to be written."""
    state_copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): slots of the state cache to copy before anything is computed, for choices that begin."""
    swaps: list[tuple[int, str]] = field(default_factory=list)
    """(slot, adapter): what is copied into slots for adapters before anything is computed."""
    admitted: list[int] = field(default_factory=list)
    """Requests scheduled for the first time."""
    preempted: list[int] = field(default_factory=list)
    expired: list[tuple[int, float]] = field(default_factory=list)
    """Requests dropped because their deadline passed while they waited, and the seconds that each would still need."""
    ended: list[int] = field(default_factory=list)
    """Requests that finished or were aborted since the last plan: the worker drops its state for them."""
    altered: dict[int, int] = field(default_factory=dict)
    """By request, the first entry of its block tables, of those before this step's first token, that is another than in
    plans before."""
    ahead: bool = False
    """Whether it was planned while a step was in flight, whose requests must not lose their blocks."""
    stalled: bool = False
    """Whether a request has to be preempted, which takes a plan that is not made ahead."""
    hit_tokens: int = 0
    """Tokens that requests admitted in this step need not compute, as the prefix cache has them."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, for requests scheduled for the first time,"""
    prefix_hits: int = 0
    """and those of them that it had."""

    @property
    def tokens(self) -> int:
        return sum(len(scheduled.tokens) for scheduled in self.requests)


@dataclass(slots=True)
class SamplerOutput:
    """What the worker sampled, by request; siblings that begin have entries of their own."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    """One token or, where draft tokens were accepted, several."""
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """For requests that ask for them, one for each of their tokens."""
    draft_tokens: dict[int, list[int]] = field(default_factory=dict)
    """Proposed for the next step, at most ``ScheduledRequest.lookahead`` of them."""
    draft_parents: dict[int, list[int]] = field(default_factory=dict)
    """Their parents, for requests whose draft tokens form a tree."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """Of the prompt tokens that follow the computed ones, for requests that ask for them."""
    deferred: set[int] = field(default_factory=set)
    """Requests whose grammar mask was not ready: they get no token, and their last one is computed again."""
    failed: dict[int, str] = field(default_factory=dict)
    """Requests whose answers cannot go on, and why."""


@dataclass(slots=True)
class RequestOutput:
    """One request's new tokens of a step."""

    request_id: int
    tokens: list[int]
    finish: FinishReason | None
    logprobs: list[TokenLogprobs] | None = None
    """One for each of ``tokens``, where the request asks for them."""
    cached: int = 0
    """With a request's first tokens: how many of its prompt the prefix cache had."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """With a request's first tokens, where it asks for them: one for each token of its prompt but the first."""
