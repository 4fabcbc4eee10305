"""What new tokens see of one another where some are branches of a tree of draft tokens (SpecInfer, Miao et al., 2023,
https://arxiv.org/abs/2305.09781).

Tokens of a tree lie in their sequence's slots one after another, parents before children. A token sees what is before
the tree, and of the tree itself and its ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

ALL = -1
"""All bits."""
MOST = 63
"""Tokens of a tree: as many bits as an int64 has without its sign."""


@dataclass(frozen=True, slots=True)
class TreeMask:
    branches: Tensor
    """int64 [tokens]: bit i is set where the token sees the tree's i-th; all are where its sequence has no tree."""
    roots: Tensor
    """int64 [sequences]: the slot of the tree's first token, counted from the sequence's start."""

    def of(self, tokens: slice, sequences: slice) -> TreeMask:
        return TreeMask(self.branches[tokens], self.roots[sequences])

    def hidden(self, positions: Tensor) -> Tensor:
        """bool [sequences, new, length], of sequences with the same number of new tokens: True where a token must not
        see one of ``positions`` int64 [sequences, length]. That it sees none after itself is left to the caller."""
        after = positions - self.roots[:, None]
        bits = self.branches.view(len(self.roots), -1, 1) >> after.clamp(0, MOST)[:, None]
        return (after >= 0)[:, None] & (bits & 1 == 0)


def branches_of(parents: Sequence[int]) -> list[int]:
    """Of a tree's tokens by their parents, -1 for those that follow what is before the tree: the bits that each has."""
    found: list[int] = []
    for number, parent in enumerate(parents):
        found.append((found[parent] if parent >= 0 else 0) | 1 << number)
    return found
