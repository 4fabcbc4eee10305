from __future__ import annotations

import torch

from engine.worker.kv_cache import KVCache, KVShape


def test_has_one_block_more_than_it_hands_out_and_starts_empty() -> None:
    cache = KVCache(KVShape(3, 2, 8), 5, 4, torch.device("cpu"), torch.float32)
    assert len(cache.layers) == 3
    assert cache.padding_block == 5
    for layer in cache.layers:
        assert layer.keys.shape == layer.values.shape == (6, 2, 4, 8)
        assert not layer.keys.any()
        assert not layer.values.any()


def test_a_blocks_bytes_are_those_of_keys_and_values_in_all_layers() -> None:
    assert KVShape(3, 2, 8).block_bytes(4, torch.bfloat16) == 2 * 3 * 2 * 8 * 4 * 2
