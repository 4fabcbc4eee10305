"""A tree of draft tokens as EAGLE-2 grows it (https://arxiv.org/abs/2406.16858): the likeliest tokens of a level are
gone on from, and of all levels together the likeliest are verified.

How likely a token is accepted is told by the head's own probabilities along its branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.core.draft_tree import DraftTree, best_tree, depths_of
from engine.core.sampling_row import SamplingRow
from engine.worker.head_drafts import DraftRow

_CHILDREN = 4


@dataclass(frozen=True, slots=True)
class TreeShape:
    depth: int
    width: int
    """Tokens of a level that are gone on from, at most."""
    children: int
    keep: float = 0.03
    """How likely a token must be to be verified: a row more of up to eight costs a step about so much of its time, on a
    CPU."""
    grow: float = 0.1
    """How likely one must be to be gone on from: that takes a pass of the head, and may lead to several."""

    @classmethod
    def of(cls, config: EngineConfig) -> TreeShape:
        width = max(1, config.draft_tree // max(1, config.max_drafts - 1))
        return cls(config.max_drafts, min(width, _CHILDREN), _CHILDREN)


class GrowingTree:
    """Of one request."""

    def __init__(self, row: DraftRow, size: int, room: int) -> None:
        """``size``: of the tree that is to be verified; ``room``: tokens that the head can run for it."""
        self.row = row
        self.tokens: list[int] = []
        self.leaves = [-1]
        """What the head's last pass was after, or the next one runs; -1: the request's own tokens."""
        self.run: list[int] = []
        """What the head has run, in order."""
        self.sources: list[int] = []
        """Of each leaf, the row of its parent in the pass before."""
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._size = size
        self._room = room

    def rows(self) -> list[SamplingRow]:
        """Of the leaves, for what follows them."""
        row = self.row.sampling_row
        return [
            SamplingRow(
                row.request_id, row.sampling, row.history, row.prompt_length, [*row.draft_tokens, *branch]
            )
            for branch in map(self._branch, self.leaves)
        ]

    def add(self, found: Sequence[Sequence[tuple[int, float]]], shape: TreeShape, first: int) -> None:
        """What may follow each leaf, with its logarithmic probability; the best of that are the next leaves. ``first``:
        the row of the first leaf."""
        before, new = self.leaves, len(self.tokens)
        for leaf, children in zip(before, found, strict=True):
            score = self._scores[leaf] if leaf >= 0 else 0.0
            for token, chance in children:
                self.tokens.append(token)
                self._parents.append(leaf)
                self._scores.append(score + chance)
        self.leaves = []
        if depths_of(self._parents)[-1] + 1 < shape.depth:
            best = sorted(self._scores, reverse=True)
            # What does not come into the tree leads to nothing that does.
            least = max(_log(shape.grow), best[self._size - 1] if len(best) >= self._size else -math.inf)
            order = sorted(range(new, len(self.tokens)), key=lambda one: -self._scores[one])
            count = min(shape.width, self._room - len(self.run))
            self.leaves = [one for one in order[:count] if self._scores[one] >= least]
        self.sources = [first + before.index(self._parents[leaf]) for leaf in self.leaves]
        self.run += self.leaves

    def run_parents(self) -> list[int]:
        places = {one: place for place, one in enumerate(self.run)}
        return [places.get(self._parents[one], -1) for one in self.run]

    def best(self, shape: TreeShape) -> DraftTree:
        return best_tree(self.tokens, self._parents, self._scores, self._size, _log(shape.keep))

    def _branch(self, leaf: int) -> list[int]:
        return DraftTree(self.tokens, self._parents).branch(leaf)


def _log(chance: float) -> float:
    return math.log(chance) if chance > 0 else -math.inf
