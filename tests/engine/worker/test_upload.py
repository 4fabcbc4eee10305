from __future__ import annotations

import numpy as np
import torch

from engine.worker.upload import pack, unpack, upload

ARRAYS = [
    np.arange(5, dtype=np.int32),
    np.linspace(-1, 1, 7, dtype=np.float32),
    np.arange(12, dtype=np.int64).reshape(3, 4) << 40,
    np.zeros((0, 3), dtype=np.int64),
    np.arange(8, dtype=np.int64)[::2],
    np.full(1, -1, dtype=np.int32),
]


def test_what_is_packed_is_as_it_was_and_aligned() -> None:
    packed = pack(ARRAYS)
    for found, array in zip(unpack(packed, ARRAYS), ARRAYS, strict=True):
        assert found.numpy().dtype == array.dtype
        assert np.array_equal(found.numpy(), array)
        assert (found.data_ptr() - packed.data_ptr()) % 16 == 0 or not array.size
        assert found.is_contiguous()


def test_another_device_gets_one_copy_and_a_cpu_none() -> None:
    far = upload(ARRAYS, torch.device("meta"))
    assert [tuple(found.shape) for found in far] == [array.shape for array in ARRAYS]
    assert len({found.untyped_storage()._cdata for found in far}) == 1
    near = upload(ARRAYS, torch.device("cpu"))
    assert all(
        np.shares_memory(found.numpy(), array)
        for found, array in zip(near, ARRAYS, strict=True)
        if array.size
    )
