from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from engine.core.draft_tree import DraftTree, best_tree, depths_of
from engine.worker.sparse_tree import sparse_tree, tokens_of
from kernels.tree_mask import branches_of

TREE = DraftTree([5, 6, 7, 6, 8], [-1, 0, 0, -1, 3])


def test_the_path_is_the_branch_that_was_sampled() -> None:
    assert TREE.path([5, 7, 9]) == [0, 2]
    assert TREE.path([6, 8, 1]) == [3, 4]
    assert TREE.path([6, 7]) == [3]
    assert TREE.path([9]) == TREE.path([]) == []
    assert [TREE.branch(i) for i in range(-1, 5)] == [[], [5], [5, 6], [5, 7], [6], [6, 8]]
    assert TREE.first_branch() == DraftTree([5, 6], [-1, 0])
    assert DraftTree([5, 6], [-1, 0]).first_branch().tokens == [5, 6]
    assert depths_of(TREE.parents) == [0, 1, 1, 0, 1]
    assert branches_of(TREE.parents) == [0b1, 0b11, 0b101, 0b1000, 0b11000]


@pytest.mark.parametrize("seed", range(20))
def test_the_best_tokens_are_a_tree_and_so_are_its_first_few(seed: int) -> None:
    numbers = random.Random(seed)
    parents, scores = [], []
    for number in range(30):
        parent = numbers.randrange(-1, number)
        parents.append(parent)
        # Of equals the parent comes first.
        scores.append((scores[parent] if parent >= 0 else 0.0) - numbers.choice([0.0, 0.5, 1.0]))
    tree = best_tree(list(range(30)), parents, scores, 9, -3.0)
    assert sorted(tree.tokens) == sorted(
        [one for one in sorted(range(30), key=lambda one: (-scores[one], one))[:9] if scores[one] >= -3]
    )
    for place, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        assert parent < place
        assert (tree.tokens[parent] if parent >= 0 else -1) == parents[token]
    # The likeliest branch comes first: where it is accepted nothing is moved.
    depth = 0
    for place in range(1, len(tree.tokens)):
        depth += 1
        if tree.parents[place] != place - 1:
            break
    first = tree.branch(depth - 1)
    for one, following in pairwise(first):
        siblings = [child for child in tree.tokens if parents[child] == one]
        assert scores[following] == max(scores[child] for child in siblings)


def test_a_sparse_tree_has_the_branches_that_are_right_most_often() -> None:
    right = ((0.6, 0.2, 0.1), (0.5, 0.3))
    every = {(a,): p for a, p in enumerate(right[0])} | {
        (a, b): p * q for a, p in enumerate(right[0]) for b, q in enumerate(right[1])
    }
    for size in range(1, len(every) + 1):
        tree = sparse_tree(right, size)
        found = {tuple(tree.branch(place)) for place in range(size)}
        assert len(found) == size
        worst = min(every[branch] for branch in found)
        assert all(chance <= worst + 1e-9 for branch, chance in every.items() if branch not in found)
    assert tokens_of(sparse_tree(right, 3), [[10, 11, 12], [20, 21]]).tokens == [10, 20, 11]
    assert sparse_tree(right, 3).parents == [-1, 0, -1]
    assert math.isclose(sum(every[branch] for branch in every if len(branch) == 1), 0.9)
