"""One request as the scheduler sees it: tokens wanted, tokens computed, blocks held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.core.logprobs import TokenLogprobs
from engine.core.prefix_cache import Node
from engine.core.sampling_params import SamplingParams
from engine.core.state_slots import NO_SLOT

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another choice of the same prompt (``n`` > 1): its first token is sampled from the same logits."""

    id: int
    params: SamplingParams


class Request:
    """``tokens`` is the prompt and what was generated since; ``computed`` of them are in the KV cache. Steps that were
    submitted and are not committed compute ``in_flight`` more, and sample ``pending`` tokens that are not known yet:
    with draft tokens among them, both are what it will be if all of these are accepted.

    There is no prefill or decode state: a request whose ``missing`` is many is being prefilled, one whose
    ``missing`` is one decodes, and a preempted one has simply lost what was computed.
    """

    __slots__ = (
        "adapter",
        "behind",
        "blocks",
        "boundary",
        "cached",
        "chain",
        "checkpoint",
        "computed",
        "credit",
        "deadline",
        "draft_parents",
        "draft_tokens",
        "elsewhere",
        "estimated",
        "forked",
        "found",
        "id",
        "in_flight",
        "kind",
        "others",
        "params",
        "pending",
        "pin",
        "prefill_at",
        "priority",
        "prompt_length",
        "prompt_logprobs",
        "rank",
        "salt",
        "shared",
        "siblings",
        "sought",
        "started",
        "state",
        "step",
        "stops",
        "submitted",
        "tenant",
        "tokens",
        "unverified",
        "void",
        "weight",
    )

    def __init__(
        self,
        id: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        submitted: float = 0.0,
        deadline: float | None = None,
        weight: float = 1.0,
        adapter: str | None = None,
        tenant: str = "",
        salt: bytes = b"",
        shared: int = 0,
        siblings: Sequence[Sibling] = (),
        pin: float = 0.0,
        prefill_at: str = "",
    ) -> None:
        """``submitted`` and ``deadline`` are seconds of the scheduler's clock."""
        self.id = id
        self.priority = priority
        """Higher goes first."""
        self.weight = weight
        """How much longer than one of weight 1 its prefix is kept."""
        self.adapter = adapter
        self.tenant = tenant
        """Tenants share batch slots, blocks and the tokens of a step."""
        self.salt = salt
        """Only requests of the same salt find each other's blocks in the prefix cache,"""
        self.shared = shared
        """except those that the prompt's first so many tokens fill, which all tenants share."""
        self.pin = pin
        """Seconds after its end for which its prompt is to be kept; 0: like any other."""
        self.prefill_at = prefill_at
        """Where another engine can be asked for its prompt's blocks; empty: wherever the engine's flags say."""
        self.siblings = list(siblings)
        """Choices of the same prompt that begin when it is computed."""
        self.draft_tokens: list[int] = []
        """Proposed for the next step, to be verified in it; ``PENDING`` where the device alone has them."""
        self.draft_parents: list[int] = []
        """Of each, where they form a tree: see ``ScheduledRequest``."""
        self.submitted = submitted
        self.deadline = deadline
        self.estimated = 0.0
        """Seconds that it was expected to take when it was submitted, as one of its ``kind``."""
        self.kind: tuple[str | None, int] | None = None
        """``None`` where how long it takes says nothing of others: it was parked, or is one of several choices."""
        self.rank: tuple[float, int] = (0.0, 0)
        """The scheduler's order: the smallest is served first, and preempted last."""
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.computed = 0
        self.in_flight = 0
        self.pending = 0
        self.unverified = 0
        """Draft tokens among both, which may be rejected."""
        self.step = 0
        """The last step that it was part of,"""
        self.void = 0
        """and the last one whose results are not its own any more."""
        self.credit = 0
        """Tokens of its prompt computed, less those that it is owed for others' that were computed before them."""
        self.blocks: list[int] = []
        """Its block table in the first group of layers."""
        self.others: Sequence[list[int]] = ()
        """Those in the other groups, where there are several."""
        self.behind = 0
        """Entries of all these that are ``GONE``."""
        self.state = NO_SLOT
        """Its slot in the state cache, where layers keep a state."""
        self.stops: list[int] = []
        """Tokens at which a chunk of its prompt ends, as others may go on from the state there,"""
        self.checkpoint: tuple[int, int] | None = None
        """and the last one whose state was copied, with its slot, until the prefix cache knows the block that ends
        there."""
        self.found: Node | None = None
        """Where there are sliding windows or states, the deepest block of its tokens at the last look-up, while it
        waits."""
        self.chain: Node | None = None
        """The last of its blocks that the prefix cache knows; while it waits, as of the last look-up."""
        self.boundary = 0
        """Tokens that must be computed before the prefix cache can register another block."""
        self.forked = False
        """Whether the block that it writes next may be shared with other choices of the same prompt."""
        self.cached = 0
        """Prompt tokens that the prefix cache had; 0 once reported."""
        self.elsewhere = 0
        """Prompt tokens that another engine computed for it since, which it finds as if they were cached."""
        self.prompt_logprobs: list[TokenLogprobs] | None = None if params.prompt_logprobs is None else []
        """Of the prompt's tokens from the second on, as far as computed. ``None``: not requested, or reported
        already."""
        self.sought = False
        """Whether further tiers of memory were asked for its prefix since it waits."""
        self.started = False
        """Whether it has ever been scheduled."""

    @property
    def missing(self) -> int:
        """Tokens wanted that no step has computed, or is about to."""
        return len(self.tokens) + self.pending - self.computed - self.in_flight

    @property
    def held(self) -> int:
        """Blocks that it holds, in all groups."""
        return len(self.blocks) + sum(map(len, self.others)) - self.behind

    @property
    def scoring(self) -> bool:
        """Whether prompt tokens must be run through the model for their logprobs, even if their KV is cached."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length - 1

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def longest(self) -> int:
        """Tokens whose KV it needs at most. The last token generated is never run through the model."""
        most = max([self.params.max_tokens, *(sibling.params.max_tokens for sibling in self.siblings)])
        return self.prompt_length + most - 1

    def append(self, token: int) -> FinishReason | None:
        tokens, params = self.tokens, self.params
        tokens.append(token)
        if token in params.stop_token_ids:
            return "stop"
        if len(tokens) - self.prompt_length >= params.max_tokens:
            return "length"
        return None

    def extend(self, sampled: list[int]) -> tuple[list[int], FinishReason | None]:
        """Appends tokens up to the one that ends the request; returns those appended."""
        tokens, params = self.tokens, self.params
        left = params.max_tokens - (len(tokens) - self.prompt_length)
        if len(sampled) < left and params.stop_token_ids.isdisjoint(sampled):
            tokens += sampled
            return sampled, None
        for count, token in enumerate(sampled, 1):
            finish = self.append(token)
            if finish is not None:
                return sampled[:count], finish
        return sampled, None
