from __future__ import annotations

import torch

from kernels.store_kv import store_kv_reference


def test_each_token_lands_in_its_slot_and_nothing_else_changes() -> None:
    k_cache, v_cache = torch.zeros(5, 3, 4, 2), torch.zeros(5, 3, 4, 2)
    k, v = torch.randn(4, 3, 2), torch.randn(4, 3, 2)
    slots = torch.tensor([0, 7, 19, 8])
    store_kv_reference(k, v, k_cache, v_cache, slots)
    for t, (block, offset) in enumerate([(0, 0), (1, 3), (4, 3), (2, 0)]):
        assert torch.equal(k_cache[block, :, offset], k[t])
        assert torch.equal(v_cache[block, :, offset], v[t])
    assert int((k_cache != 0).sum()) == k.numel()
    assert int((v_cache != 0).sum()) == v.numel()


def test_keys_may_be_a_slice_of_a_wider_product() -> None:
    wide = torch.randn(2, 6, 4)
    k_cache, v_cache = torch.zeros(1, 2, 8, 4), torch.zeros(1, 2, 8, 4)
    store_kv_reference(wide[:, 2:4], wide[:, 4:], k_cache, v_cache, torch.tensor([3, 5]))
    assert torch.equal(k_cache[0, :, 3], wide[0, 2:4])
    assert torch.equal(v_cache[0, :, 5], wide[1, 4:])
