"""A worker without a model: its next token is a function of all tokens before it, and its cache knows what it holds."""

from __future__ import annotations

import random

from engine.core.plan import Plan, SamplerOutput, ScheduledRequest
from engine.core.sampling_params import SamplingParams


class FakeWorker:
    """Fails as soon as a plan computes on top of anything but the request's own tokens."""

    def __init__(self, block_size: int, *, vocab: int = 3, seed: int = 0) -> None:
        self.block_size = block_size
        self.vocab = vocab
        self.generations: dict[str | None, int] = {}
        """Of each adapter's weights."""
        self.kv: dict[tuple[int, int], int] = {}
        self.ended: list[int] = []
        self._rng = random.Random(seed)

    def state(self, adapter: str | None) -> int:
        return hash((adapter is None, len(adapter or ""), self.generations.get(adapter, 0)))

    def token(self, state: int, params: SamplingParams) -> int:
        return hash((state, params.seed if params.temperature else 0)) % 1009 % self.vocab

    def answer(self, prompt: list[int], params: SamplingParams, adapter: str | None = None) -> list[int]:
        """What a request gets when it is alone."""
        state, found = self.state(adapter), []
        for token in prompt:
            state = hash((state, token))
        while True:
            found.append(self.token(state, params))
            if found[-1] in params.stop_token_ids or len(found) == params.max_tokens:
                return found
            state = hash((state, found[-1]))

    def execute(self, plan: Plan) -> SamplerOutput:
        self.ended += plan.ended
        for source, target in plan.copies:
            for offset in range(self.block_size):
                self.kv.pop((target, offset), None)
                if (source, offset) in self.kv:
                    self.kv[target, offset] = self.kv[source, offset]
        sampled = SamplerOutput()
        states = [self._compute(scheduled) for scheduled in plan.requests]
        # What one writes, nobody else may have written over.
        for scheduled, after in zip(plan.requests, states, strict=True):
            assert self._at(scheduled, scheduled.end - 1) == after[-1]
            if scheduled.sampling is not None:
                self._draw(scheduled, after, sampled)
        return sampled

    def _at(self, scheduled: ScheduledRequest, position: int) -> int | None:
        block = scheduled.blocks[position // self.block_size]
        return self.kv.get((block, position % self.block_size))

    def _compute(self, scheduled: ScheduledRequest) -> list[int]:
        """The states after each of the work's tokens."""
        assert scheduled.tokens
        assert len(scheduled.blocks) * self.block_size >= scheduled.end + scheduled.lookahead
        state = self.state(scheduled.adapter)
        for position in range(scheduled.start):
            state = hash((state, scheduled.history[position]))
            assert self._at(scheduled, position) == state, (
                f"request {scheduled.request_id}, position {position}"
            )
        real = len(scheduled.tokens) - scheduled.num_draft_tokens
        assert scheduled.tokens[:real] == scheduled.history[scheduled.start : scheduled.start + real]
        assert (scheduled.sampling is not None) == (scheduled.start + real == len(scheduled.history))
        after = []
        for position, token in enumerate(scheduled.tokens, scheduled.start):
            state = hash((state, token))
            block = scheduled.blocks[position // self.block_size]
            self.kv[block, position % self.block_size] = state
            after.append(state)
        return after

    def _draw(self, scheduled: ScheduledRequest, after: list[int], sampled: SamplerOutput) -> None:
        assert scheduled.sampling is not None
        kept = []
        for i in range(scheduled.num_draft_tokens + 1):
            state = after[len(after) - 1 - scheduled.num_draft_tokens + i]
            kept.append(self.token(state, scheduled.sampling))
            if (
                i < scheduled.num_draft_tokens
                and kept[-1] != scheduled.tokens[len(scheduled.tokens) - scheduled.num_draft_tokens + i]
            ):
                break
        sampled.tokens[scheduled.request_id] = kept
        for sibling in scheduled.siblings:
            sampled.tokens[sibling.id] = [self.token(after[-1], sibling.params)]
        draft_tokens, state = [], hash((state, kept[-1]))
        for _ in range(self._rng.randint(0, scheduled.lookahead)):
            right = self.token(state, scheduled.sampling)
            draft_tokens.append(right if self._rng.random() < 0.7 else self._rng.randrange(self.vocab))
            state = hash((state, draft_tokens[-1]))
        if draft_tokens:
            sampled.draft_tokens[scheduled.request_id] = draft_tokens
