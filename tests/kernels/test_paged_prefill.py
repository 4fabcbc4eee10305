from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.paged_prefill import TILE, paged_prefill_reference
from tests.kernels.paged import Paged, dense, scatter


def run(
    paged: Paged,
    q: Tensor,
    new: list[int],
    lens: list[int],
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    starts = torch.tensor([0, *new]).cumsum(0)
    kv = replace(paged.kv(), seq_lens=torch.tensor(lens))
    return paged_prefill_reference(q, kv, starts, scale, window, softcap)


@pytest.mark.parametrize(
    ("lengths", "new", "heads", "kv_heads", "head_dim", "block_size"),
    [
        pytest.param([15], [15], 4, 2, 16, 16, id="block-minus-1"),
        pytest.param([16], [16], 4, 2, 16, 16, id="one-whole-block"),
        pytest.param([17, 33], [17, 2], 6, 2, 8, 16, id="block-plus-1-and-a-late-chunk"),
        pytest.param([TILE - 1, TILE, TILE + 1], [TILE - 1, TILE, TILE + 1], 4, 4, 8, 16, id="tile-edges"),
        pytest.param([200, 9], [70, 9], 8, 1, 24, 7, id="chunk-within-tiles-block-7"),
        pytest.param([130, 2, 65], [1, 2, 64], 3, 3, 8, 4, id="one-row-chunk"),
    ],
)
def test_equals_dense_attention(
    lengths: list[int], new: list[int], heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    paged = scatter(lengths, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    q = torch.randn(sum(new), heads, head_dim, generator=torch.Generator().manual_seed(2))
    out = run(paged, q, new, lengths, head_dim**-0.5)
    first = 0
    for b, count in enumerate(new):
        rows = slice(first, first + count)
        expected = dense(q[rows], paged.keys[b], paged.values[b], head_dim**-0.5)
        torch.testing.assert_close(out[rows].double(), expected, rtol=1e-5, atol=1e-5)
        first += count


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 2, 40, TILE, TILE + 1, 1000])
def test_a_window_and_a_cap_equal_dense_attention(window: int | None, softcap: float | None) -> None:
    lengths, new = [200, 70, 9], [90, 70, 1]
    paged = scatter(lengths, kv_heads=2, head_dim=16, block_size=7)
    q = torch.randn(sum(new), 4, 16, generator=torch.Generator().manual_seed(2))
    out = run(paged, q, new, lengths, 0.5, window, softcap)
    first = 0
    for b, count in enumerate(new):
        rows = slice(first, first + count)
        expected = dense(q[rows], paged.keys[b], paged.values[b], 0.5, window, softcap)
        torch.testing.assert_close(out[rows].double(), expected, rtol=1e-5, atol=1e-5)
        first += count


@pytest.mark.parametrize("window", [None, 20, 70])
@pytest.mark.parametrize("cuts", [[150], [64, 86], [1, 149], [63, 2, 85], [10] * 15])
def test_is_the_same_to_the_bit_however_a_prompt_is_chunked(cuts: list[int], window: int | None) -> None:
    paged = scatter([150], kv_heads=2, head_dim=16, block_size=16)
    q = torch.randn(150, 4, 16, generator=torch.Generator().manual_seed(3))
    whole = run(paged, q, [150], [150], 0.25, window)
    done = 0
    for count in cuts:
        part = run(paged, q[done : done + count], [count], [done + count], 0.25, window)
        assert torch.equal(part, whole[done : done + count])
        done += count
