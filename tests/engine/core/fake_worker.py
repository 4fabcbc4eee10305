"""A worker without a model: its next token is a function of all tokens before it, and its cache knows what it holds."""

from __future__ import annotations

import random

from engine.core.plan import Drawn, Plan, Work
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

    def execute(self, plan: Plan) -> Drawn:
        self.ended += plan.ended
        for source, target in plan.copies:
            for offset in range(self.block_size):
                self.kv.pop((target, offset), None)
                if (source, offset) in self.kv:
                    self.kv[target, offset] = self.kv[source, offset]
        drawn = Drawn()
        states = [self._compute(work) for work in plan.work]
        # What one writes, nobody else may have written over.
        for work, after in zip(plan.work, states, strict=True):
            assert self._at(work, work.end - 1) == after[-1]
            if work.sampling is not None:
                self._draw(work, after, drawn)
        return drawn

    def _at(self, work: Work, position: int) -> int | None:
        block = work.blocks[position // self.block_size]
        return self.kv.get((block, position % self.block_size))

    def _compute(self, work: Work) -> list[int]:
        """The states after each of the work's tokens."""
        assert work.tokens
        assert len(work.blocks) * self.block_size >= work.end + work.room
        state = self.state(work.adapter)
        for position in range(work.start):
            state = hash((state, work.history[position]))
            assert self._at(work, position) == state, f"request {work.request_id}, position {position}"
        real = len(work.tokens) - work.drafts
        assert work.tokens[:real] == work.history[work.start : work.start + real]
        assert (work.sampling is not None) == (work.start + real == len(work.history))
        after = []
        for position, token in enumerate(work.tokens, work.start):
            state = hash((state, token))
            block = work.blocks[position // self.block_size]
            self.kv[block, position % self.block_size] = state
            after.append(state)
        return after

    def _draw(self, work: Work, after: list[int], drawn: Drawn) -> None:
        assert work.sampling is not None
        kept = []
        for i in range(work.drafts + 1):
            state = after[len(after) - 1 - work.drafts + i]
            kept.append(self.token(state, work.sampling))
            if i < work.drafts and kept[-1] != work.tokens[len(work.tokens) - work.drafts + i]:
                break
        drawn.tokens[work.request_id] = kept
        for sibling in work.siblings:
            drawn.tokens[sibling.id] = [self.token(after[-1], sibling.params)]
        guesses, state = [], hash((state, kept[-1]))
        for _ in range(self._rng.randint(0, work.room)):
            right = self.token(state, work.sampling)
            guesses.append(right if self._rng.random() < 0.7 else self._rng.randrange(self.vocab))
            state = hash((state, guesses[-1]))
        if guesses:
            drawn.drafts[work.request_id] = guesses
