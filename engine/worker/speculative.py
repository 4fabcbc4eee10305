"""Speculative decoding: propose draft tokens, verify them all in one step, keep those that the target agrees with.

Why no token changes. Leviathan et al. (https://arxiv.org/abs/2211.17192) and Chen et al.
(https://arxiv.org/abs/2302.01318) keep a draft token x, sampled from the draft's q, with probability min(1, p(x) /
q(x)), and resample from the residual max(0, p - q) if it is rejected; the sum of both is p, the target's
distribution. Here the target samples a token at every verified position, from its own p and by that position's own
uniform number u, and a draft token is accepted if it equals that sample (``rejection_sampler.accepted``). So each
accepted token *is* a sample from p, given the tokens before it, whatever the draft token was and wherever it came
from:

- A draft token chosen without randomness (prompt lookup, a greedy draft) has q(x) = 1. It is accepted with
  probability p(x) = min(1, p(x) / q(x)), and if not, the sample is distributed as p without x, which is the residual:
  rejection sampling itself.
- A draft token sampled from the draft's q by the *same* u as the target will use is a coupling of q and p. That is
  exact too, as the target's sample is a function of its own p and u alone. Draft and target agree the more often, the
  more the two cumulative distributions have in common; independent samples would agree with probability sum(p q)
  only.
- After a rejected draft token, later samples of that step are discarded; their u belong to (seed, position), so the
  next step samples there by the same u but from other logits. Each u is used for one token that is kept: those are
  independent.

In particular the tokens are the very same as without speculation, for greedy and for seeded requests alike, as far as
the model's logits do not depend on how many tokens are computed together.

Draft tokens that form a tree (https://arxiv.org/abs/2305.09781) are several for a position: the target samples one
token there all the same, by that position's u, and goes on in the branch that has it, if any does. All branches'
samples of a depth have the same u, and those of one branch at most are kept, so nothing above changes: this is what
SpecInfer calls naive sampling. It accepts with the probability of all candidates together, which no other exact rule
exceeds for candidates chosen without randomness.

The same holds for the drafts of a head that reads the target's hidden states (``eagle.py``, ``medusa.py``): they are
draft tokens like others.

``draft_length.py`` decides how many draft tokens to propose. Nothing in this file needs torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from engine.core.plan import Plan
from engine.worker.draft_length import DraftLengthPolicy
from engine.worker.draft_tree_size import DraftTreePolicy

if TYPE_CHECKING:
    from engine.core.draft_tree import DraftTree
    from engine.models.hidden_states import HiddenStates
    from engine.worker.batch import Batch


class Proposer(Protocol):
    """Proposes the tokens that come next. Within a step: ``begin``, ``look``, ``prepare``, ``propose``."""

    source: str
    block_bytes: int
    """Memory it needs for each KV block."""

    def allocate(self, blocks: int) -> None:
        """Called once there is a KV cache of ``blocks`` blocks, before anything below."""
        ...

    def begin(self, plan: Plan) -> None:
        """Called before a plan is computed."""
        ...

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        """By request, how many draft tokens it could propose: ``limits`` at most, requests without any left out.

        ``tokens``: what the step has sampled, by request.
        """
        ...

    def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
        """Does what these requests need once before anything is proposed for them; returns those that are ready."""
        ...

    def propose(self, lengths: Mapping[int, int]) -> dict[int, list[int]]: ...

    def forget(self, request_ids: Sequence[int]) -> None: ...


@runtime_checkable
class HeadProposer(Proposer, Protocol):
    """Proposes from the target's hidden states: ``observe`` comes between ``begin`` and ``look``."""

    def states(self) -> HiddenStates:
        """What the next forward pass is to keep."""
        ...

    def observe(self, batch: Batch, states: HiddenStates, tokens: Mapping[int, Sequence[int]]) -> None:
        """Called after every step. ``tokens``: what it has sampled, by request."""
        ...


@runtime_checkable
class TreeProposer(Proposer, Protocol):
    """Proposes trees in place of ``propose``."""

    def propose_trees(self, sizes: Mapping[int, int]) -> dict[int, DraftTree]: ...


class LengthPolicy(Protocol):
    """How many draft tokens to propose. ``DraftLengthPolicy`` documents each method."""

    def paused(self, base: int) -> bool: ...

    def choose(self, base: int, limits: Mapping[int, int]) -> dict[int, int]: ...

    def record_acceptance(self, request_id: int, drafted: int, accepted: int) -> None: ...

    def observe(self, base: int, drafted: int, accepted: int, seconds: float) -> None: ...

    def record_preparation(self, seconds: float) -> None: ...

    def forget(self, request_ids: Sequence[int]) -> None: ...


class Speculation:
    """Wraps each step of the runner: ``begin`` before it, ``propose`` after it."""

    def __init__(
        self,
        proposer: Proposer,
        max_drafts: int,
        *,
        policy: LengthPolicy | None = None,
        trees: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``max_drafts``: of a step and request; with ``trees`` the tokens of a tree."""
        self.proposer = proposer
        self._grower = proposer if trees and isinstance(proposer, TreeProposer) else None
        self.parents: dict[int, list[int]] = {}
        """Of the draft tokens proposed last, where they form trees."""
        self._head = proposer if isinstance(proposer, HeadProposer) else None
        usual = DraftTreePolicy if self._grower else DraftLengthPolicy
        self.policy: LengthPolicy = policy or usual(max_drafts)
        self.max_drafts = max_drafts
        self.proposed = 0
        """Draft tokens verified so far."""
        self.accepted = 0
        """Draft tokens accepted so far."""
        self._clock = clock
        self._began = 0.0
        self._proposing = 0.0
        """Seconds spent on proposing the draft tokens that the next step verifies."""

    @property
    def source(self) -> str:
        return self.proposer.source

    @property
    def acceptance(self) -> float:
        """Share of draft tokens that were accepted, 0 before the first."""
        return self.accepted / self.proposed if self.proposed else 0.0

    def begin(self, plan: Plan) -> None:
        if plan.ended:
            self.forget(plan.ended)
        self._began = self._clock()
        self.proposer.begin(plan)

    def states(self) -> HiddenStates | None:
        """What the forward pass is to keep for ``observe``, if anything."""
        return self._head.states() if self._head else None

    def observe(self, batch: Batch, states: HiddenStates, tokens: Mapping[int, Sequence[int]]) -> None:
        """What ``states`` asked for is there. Its time counts as the step's, as every step needs it."""
        if self._head:
            self._head.observe(batch, states, tokens)

    def propose(self, plan: Plan, tokens: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """Draft tokens for the next step, by request. ``tokens``: what this step sampled and kept, by request."""
        now = self._clock()
        base, self.parents = self.record(plan, tokens, now - self._began), {}
        if not plan.requests or self.policy.paused(base):
            return {}
        available = self.proposer.look(plan, tokens, self._limits(plan, tokens))
        lengths = self.policy.choose(base, available)
        if not lengths:
            return {}
        began = self._clock()
        ready = self.proposer.prepare(lengths)
        preparing = self._clock() - began
        self.policy.record_preparation(preparing)
        draft_tokens = self._propose(plan, ready) if ready else {}
        self._proposing = self._clock() - now - preparing
        return draft_tokens

    def _propose(self, plan: Plan, ready: Mapping[int, int]) -> dict[int, list[int]]:
        if self._grower is None:
            return self.proposer.propose(ready)
        trees = self._grower.propose_trees(ready)
        for scheduled in plan.requests:
            # A matcher goes through draft tokens one after another.
            bound = scheduled.sampling is not None and scheduled.sampling.grammar is not None
            if bound and (tree := trees.get(scheduled.request_id)):
                trees[scheduled.request_id] = tree.first_branch()
        self.parents = {request_id: tree.parents for request_id, tree in trees.items()}
        return {request_id: tree.tokens for request_id, tree in trees.items()}

    def forget(self, request_ids: Sequence[int]) -> None:
        self.proposer.forget(request_ids)
        self.policy.forget(request_ids)

    def record(self, plan: Plan, tokens: Mapping[int, Sequence[int]], seconds: float) -> int:
        """Takes in how long ``plan`` took and what was accepted of its draft tokens; returns how many other tokens it
        computed."""
        drafted = accepted = 0
        for scheduled in plan.requests:
            # Of one that ended in the step before nothing is sampled.
            if scheduled.num_draft_tokens and scheduled.request_id in tokens:
                right = len(tokens[scheduled.request_id]) - 1
                self.policy.record_acceptance(scheduled.request_id, scheduled.num_draft_tokens, right)
                drafted += scheduled.num_draft_tokens
                accepted += right
        self.proposed += drafted
        self.accepted += accepted
        base = plan.tokens - drafted
        self.policy.observe(base, drafted, accepted, seconds + (self._proposing if drafted else 0.0))
        return base

    def _limits(self, plan: Plan, tokens: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """By request, how many draft tokens the next step could use."""
        limits = {}
        for scheduled in plan.requests:
            if not scheduled.lookahead or scheduled.sampling is None:
                continue
            sampled = tokens[scheduled.request_id]
            if not scheduled.sampling.stop_token_ids.isdisjoint(sampled):
                continue
            # The next step samples one token more than it verifies.
            generated = len(scheduled.history) + len(sampled) - scheduled.prompt_length
            left = scheduled.sampling.max_tokens - generated - 1
            if left > 0:
                limits[scheduled.request_id] = min(scheduled.lookahead, left, self.max_drafts)
        return limits


class FixedDraftLength:
    """Always as many as the limits allow, up to ``most``: for tests and comparisons."""

    def __init__(self, most: int) -> None:
        self._most = most

    def paused(self, base: int) -> bool:
        return self._most == 0

    def choose(self, base: int, limits: Mapping[int, int]) -> dict[int, int]:
        return {request_id: min(limit, self._most) for request_id, limit in limits.items()}

    def record_acceptance(self, request_id: int, drafted: int, accepted: int) -> None:
        pass

    def observe(self, base: int, drafted: int, accepted: int, seconds: float) -> None:
        pass

    def record_preparation(self, seconds: float) -> None:
        pass

    def forget(self, request_ids: Sequence[int]) -> None:
        pass
