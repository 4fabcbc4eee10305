"""Draft tokens that form a tree: several candidates for a position, of which one at most is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftTree:
    tokens: list[int]
    """Parents before their children, so that the first few of them are a tree, too."""
    parents: list[int]
    """Of each token the place of the one that it follows, or -1: the request's last token. The children of one are
    different tokens."""

    def branch(self, number: int) -> list[int]:
        """Tokens from the root to that one."""
        found: list[int] = []
        while number >= 0:
            found.append(self.tokens[number])
            number = self.parents[number]
        return found[::-1]

    def first_branch(self) -> DraftTree:
        """The chain that it begins with."""
        count = next((i for i, parent in enumerate(self.parents) if parent != i - 1), len(self.parents))
        return DraftTree(self.tokens[:count], self.parents[:count])

    def path(self, sampled: Sequence[int]) -> list[int]:
        """The places of the tokens that were accepted, where those of ``sampled`` follow the request's last."""
        children = {
            (parent, token): place
            for place, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True))
        }
        found: list[int] = []
        for token in sampled:
            place = children.get((found[-1] if found else -1, token))
            if place is None:
                break
            found.append(place)
        return found


def depths_of(parents: Sequence[int]) -> list[int]:
    """0 for the root's children."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 0)
    return found


def best_tree(
    tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], most: int, least: float
) -> DraftTree:
    """The ``most`` tokens of the highest scores, at least ``least`` each. No token's score is above its parent's.

    A branch stands together, the likeliest first: where that one is accepted, its keys and values are in place.
    """
    order = sorted(range(len(tokens)), key=lambda one: (-scores[one], one))[:most]
    children: dict[int, list[int]] = {}
    for one in order:
        if scores[one] >= least:
            children.setdefault(parents[one], []).append(one)
    found = DraftTree([], [])
    places = {-1: -1}
    left = children.get(-1, [])[::-1]
    while left:
        one = left.pop()
        places[one] = len(found.tokens)
        found.tokens.append(tokens[one])
        found.parents.append(places[parents[one]])
        left += children.get(one, [])[::-1]
    return found
