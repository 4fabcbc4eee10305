from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KVCache, KVShape
from engine.kv_groups import group_layers


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        ((None,) * 5, {None: [5]}),
        ((8,) * 5, {8: [5]}),
        ((8, None, 8, None), {None: [2], 8: [2]}),
        # Of three and fifteen layers none is missing in groups of three.
        ((*[8] * 5, None) * 3, {None: [3], 8: [3] * 5}),
        # Twenty-two are five groups of four, and two more.
        ((*[8] * 5, None) * 4 + (8, 8), {None: [4], 8: [4] * 5 + [2]}),
        # Half a group would be missing.
        ((8, 8, 8, None, None), {None: [1, 1], 8: [1, 1, 1]}),
        # Beyond the longest sequence a window is none.
        ((8, 100, None), {None: [1, 1], 8: [1]}),
        ((), {}),
    ],
)
def test_groups_have_as_many_layers_or_nearly(
    windows: tuple[int | None, ...], sizes: dict[int | None, list[int]]
) -> None:
    groups = group_layers(windows, 100)
    found: dict[int | None, list[int]] = {}
    for group in groups:
        found.setdefault(group.window, []).append(len(group.layers))
    assert found == sizes
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    # Those that see everything come first.
    assert [group.window is not None for group in groups] == sorted(
        group.window is not None for group in groups
    )


def test_a_block_has_room_for_the_largest_group() -> None:
    windows = (None,) * 6 + (8,) * 7
    groups = group_layers(windows, 100)
    assert [len(group.layers) for group in groups] == [6, 7]
    shape = KVShape(13, 2, 8, windows)
    cache = KVCache(shape, 5, 4, torch.device("cpu"), torch.float32, groups=groups)
    tensors = {id(layer): layer.tensors for layer in cache.layers}.values()
    held = sum(tensor.nbytes for layer in tensors for tensor in layer)
    assert held == 6 * shape.block_bytes(4, torch.float32, groups=groups)
