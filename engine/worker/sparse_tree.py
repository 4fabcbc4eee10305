"""The fixed sparse tree of Medusa (https://arxiv.org/abs/2401.10774, section 2.3.3): of all branches of heads' ranked
tokens those that are accepted most often, as far as heads are right independently of one another."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import cache

from engine.core.draft_tree import DraftTree, best_tree


@cache
def sparse_tree(right: tuple[tuple[float, ...], ...], size: int) -> DraftTree:
    """``right``: of each head, how often its token of each rank is right. A token of the tree is a rank; its head is
    that of its depth."""
    ranks: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # (less likely first, rank, depth, parent)
    left = [(-_log(right[0][0]), 0, 0, -1)] if right else []
    while left and len(ranks) < size:
        cost, rank, depth, parent = heapq.heappop(left)
        number = len(ranks)
        ranks.append(rank)
        parents.append(parent)
        scores.append(-cost)
        if rank + 1 < len(right[depth]):
            sibling = cost + _log(right[depth][rank]) - _log(right[depth][rank + 1])
            heapq.heappush(left, (sibling, rank + 1, depth, parent))
        if depth + 1 < len(right):
            heapq.heappush(left, (cost - _log(right[depth + 1][0]), 0, depth + 1, number))
    return best_tree(ranks, parents, scores, size, -math.inf)


def _log(chance: float) -> float:
    return math.log(max(chance, 1e-9))


def tokens_of(tree: DraftTree, found: Sequence[Sequence[int]]) -> DraftTree:
    """``found``: by head, its tokens by rank."""
    tokens: list[int] = []
    depths: list[int] = []
    for rank, parent in zip(tree.tokens, tree.parents, strict=True):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        tokens.append(found[depths[-1]][rank])
    return DraftTree(tokens, tree.parents)
