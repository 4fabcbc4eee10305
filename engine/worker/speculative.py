"""Speculative decoding: guess the next tokens, check them all in one step, keep those that come true.

Why no token changes. Leviathan et al. (https://arxiv.org/abs/2211.17192) and Chen et al.
(https://arxiv.org/abs/2302.01318) keep a guess x, drawn from the draft's q, with probability min(1, p(x) / q(x)), and
draw anew from the residual max(0, p - q) if it is thrown away; the sum of both is p, the target's distribution. Here
the target draws a token at every position that is checked, from its own p and by that position's own uniform number u,
and a guess is kept if it equals that draw (``sampler.verify``). So each kept token *is* a draw from p, given the tokens
before it, whatever the guess was and however it was come by:

- A guess made without chance (prompt lookup, a greedy draft) has q(x) = 1. It is kept with probability p(x) =
  min(1, p(x) / q(x)), and if not, the draw is spread as p without x, which is the residual: rejection sampling itself.
- A guess drawn from the draft's q by the *same* u as the target will use is a coupling of q and p. That is exact too,
  as the target's draw is a function of its own p and u alone. Guess and draw agree the more often, the more the two
  cumulative distributions have in common; independent draws would agree with probability sum(p q) only.
- After a guess that fails, later draws of that step are thrown away; their u belong to (seed, position), so the next
  step draws there by the same u but from other logits. Each u serves one token that is kept: those are independent.

In particular the tokens are the very same as without speculation, for greedy and for seeded requests alike, as far as
the model's logits do not depend on how many tokens are computed together.

How many to guess is ``Lengths``' part. Nothing in this file needs torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from engine.core.plan import Plan
from engine.worker.lengths import Lengths


class Proposer(Protocol):
    """Guesses the tokens that come next."""

    source: str
    block_bytes: int
    """What it needs of memory for each KV block."""

    def allocate(self, blocks: int) -> None:
        """Called once there is a KV cache, of so many blocks, and before anything below."""
        ...

    def begin(self, plan: Plan) -> None:
        """Called before a plan is computed."""
        ...

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], rooms: Mapping[int, int]
    ) -> dict[int, int]:
        """How many guesses it could make, for those of ``rooms`` for whom it could; ``tokens``: what was drawn."""
        ...

    def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
        """Does what has to be done once before these can be guessed for; those for whom all of it is done."""
        ...

    def guess(self, lengths: Mapping[int, int]) -> dict[int, list[int]]: ...

    def forget(self, request_ids: Sequence[int]) -> None: ...


class Policy(Protocol):
    """How many to guess; ``Lengths`` has the meaning of each."""

    def asleep(self, base: int) -> bool: ...

    def choose(self, base: int, rooms: Mapping[int, int]) -> dict[int, int]: ...

    def judge(self, request_id: int, guesses: int, accepted: int) -> None: ...

    def observe(self, base: int, guesses: int, accepted: int, seconds: float) -> None: ...

    def prepared(self, seconds: float) -> None: ...

    def forget(self, request_ids: Sequence[int]) -> None: ...


class Speculation:
    """Around each step of the runner: ``begin`` before it, ``propose`` after it."""

    def __init__(
        self,
        proposer: Proposer,
        max_drafts: int,
        *,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.proposer = proposer
        self.policy: Policy = policy or Lengths(max_drafts)
        self.max_drafts = max_drafts
        self.proposed = 0
        """Guesses that were checked."""
        self.accepted = 0
        """Guesses that came true."""
        self._clock = clock
        self._began = 0.0
        self._spent = 0.0
        """Seconds that the guesses to be checked next took to make."""

    @property
    def source(self) -> str:
        return self.proposer.source

    @property
    def acceptance(self) -> float:
        """Share of guesses that came true, 0 before the first."""
        return self.accepted / self.proposed if self.proposed else 0.0

    def begin(self, plan: Plan) -> None:
        if plan.ended:
            self.forget(plan.ended)
        self._began = self._clock()
        self.proposer.begin(plan)

    def propose(self, plan: Plan, tokens: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """``tokens``: what was drawn and kept, by request. The guesses for the next step."""
        now = self._clock()
        base = self._learn(plan, tokens, now - self._began)
        if not plan.requests or self.policy.asleep(base):
            return {}
        rooms = self._rooms(plan, tokens)
        able = self.proposer.look(plan, tokens, rooms)
        lengths = self.policy.choose(base, able)
        if not lengths:
            return {}
        began = self._clock()
        ready = self.proposer.prepare(lengths)
        prepared = self._clock()
        self.policy.prepared(prepared - began)
        guesses = self.proposer.guess(ready) if ready else {}
        self._spent = self._clock() - now - (prepared - began)
        return guesses

    def forget(self, request_ids: Sequence[int]) -> None:
        self.proposer.forget(request_ids)
        self.policy.forget(request_ids)

    def _learn(self, plan: Plan, tokens: Mapping[int, Sequence[int]], seconds: float) -> int:
        """What came of the guesses that ``plan`` checked; the tokens that it computed beside them."""
        guesses = accepted = 0
        for scheduled in plan.requests:
            if scheduled.drafts and scheduled.sampling is not None:
                right = len(tokens[scheduled.request_id]) - 1
                self.policy.judge(scheduled.request_id, scheduled.drafts, right)
                guesses += scheduled.drafts
                accepted += right
        self.proposed += guesses
        self.accepted += accepted
        base = plan.tokens - guesses
        self.policy.observe(base, guesses, accepted, seconds + (self._spent if guesses else 0.0))
        return base

    def _rooms(self, plan: Plan, tokens: Mapping[int, Sequence[int]]) -> dict[int, int]:
        """How many guesses could be of use to whom."""
        rooms = {}
        for scheduled in plan.requests:
            if not scheduled.room or scheduled.sampling is None:
                continue
            sampled = tokens[scheduled.request_id]
            if not scheduled.sampling.stop_token_ids.isdisjoint(sampled):
                continue
            # The next step draws one more than it checks.
            left = (
                scheduled.sampling.max_tokens
                - (len(scheduled.history) + len(sampled) - scheduled.prompt_length)
                - 1
            )
            if left > 0:
                rooms[scheduled.request_id] = min(scheduled.room, left, self.max_drafts)
        return rooms


class Fixed:
    """Always as many as there is room for, up to ``most``: for tests and comparisons."""

    def __init__(self, most: int) -> None:
        self._most = most

    def asleep(self, base: int) -> bool:
        return self._most == 0

    def choose(self, base: int, rooms: Mapping[int, int]) -> dict[int, int]:
        return {request_id: min(room, self._most) for request_id, room in rooms.items()}

    def judge(self, request_id: int, guesses: int, accepted: int) -> None:
        pass

    def observe(self, base: int, guesses: int, accepted: int, seconds: float) -> None:
        pass

    def prepared(self, seconds: float) -> None:
        pass

    def forget(self, request_ids: Sequence[int]) -> None:
        pass
