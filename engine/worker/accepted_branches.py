"""Where keys and values of a tree's accepted draft tokens are, and where they belong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.core.plan import Plan


def moves(plan: Plan, tokens: Mapping[int, Sequence[int]], block_size: int) -> list[tuple[int, int]]:
    """(from, to): slots. ``tokens``: what the step sampled and kept, by request."""
    found = []
    for scheduled in plan.requests:
        tree = scheduled.tree
        if tree is None or scheduled.request_id not in tokens:
            continue
        root = scheduled.end - len(tree.tokens)
        for depth, place in enumerate(tree.path(tokens[scheduled.request_id])):
            if place != depth:
                found.append(
                    (
                        _slot(scheduled.blocks, root + place, block_size),
                        _slot(scheduled.blocks, root + depth, block_size),
                    )
                )
    return found


def _slot(blocks: Sequence[int], position: int, size: int) -> int:
    return blocks[position // size] * size + position % size
