from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.latent_attention import latent_decode, latent_prefill
from kernels.paged_decode import GatherIndex
from kernels.paged_kv import PagedKV
from kernels.paged_prefill import TILE
from kernels.store_kv import quantize
from tests.kernels.paged import Paged, dense, scatter

D, RANK, SCALE = 8, 24, 0.3


def latents(lengths: list[int], block_size: int) -> tuple[Paged, PagedKV]:
    """As attention with one head whose keys are a rotated key and a latent, and whose values are these, too."""
    paged = scatter(lengths, kv_heads=1, head_dim=D + RANK, block_size=block_size)
    keys, values = (part.contiguous() for part in paged.k_cache.split([D, RANK], -1))
    return paged, PagedKV(keys, values, paged.block_tables, paged.seq_lens)


def queries(rows: int, heads: int) -> Tensor:
    return torch.randn(rows, heads, D + RANK, generator=torch.Generator().manual_seed(2))


def wanted(q: Tensor, keys: Tensor) -> Tensor:
    return dense(q, keys, keys, SCALE)[..., D:]


def decode(q: Tensor, kv: PagedKV, new: int) -> Tensor:
    block_size = kv.keys.shape[2]
    return latent_decode(q, kv, GatherIndex.of(kv.block_tables, kv.seq_lens, new, 1, block_size, None), SCALE)


def prefill(q: Tensor, kv: PagedKV, new: list[int], lens: list[int], tile: int = TILE) -> Tensor:
    starts = torch.tensor([0, *new]).cumsum(0)
    return latent_prefill(q, replace(kv, seq_lens=torch.tensor(lens)), starts, SCALE, tile)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("block_size", [4, 7, 16])
def test_decodes_equal_dense_attention(new: int, block_size: int) -> None:
    lengths = [3, 33, 16, 70]
    paged, kv = latents(lengths, block_size)
    q = queries(len(lengths) * new, 5)
    out = decode(q, kv, new)
    assert out.shape == (len(q), 5, RANK)
    for s, keys in enumerate(paged.keys):
        rows = slice(s * new, (s + 1) * new)
        torch.testing.assert_close(out[rows].double(), wanted(q[rows], keys), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "tile"), [(3, TILE), (3, 16), (40, TILE)])
def test_prompts_equal_dense_attention(heads: int, tile: int) -> None:
    """With 40 heads a tile has more rows than are computed at a time."""
    lengths, new = [200, TILE, 9, 130], [70, TILE, 9, 1]
    paged, kv = latents(lengths, 7)
    q = queries(sum(new), heads)
    out = prefill(q, kv, new, lengths, tile)
    first = 0
    for count, keys in zip(new, paged.keys, strict=True):
        rows = slice(first, first + count)
        torch.testing.assert_close(out[rows].double(), wanted(q[rows], keys), rtol=1e-5, atol=1e-5)
        first += count


@pytest.mark.parametrize("cuts", [[150], [64, 86], [1, 149], [63, 2, 85], [10] * 15])
def test_is_the_same_to_the_bit_however_a_prompt_is_chunked(cuts: list[int]) -> None:
    _, kv = latents([150], 16)
    q = queries(150, 20)
    whole = prefill(q, kv, [150], [150])
    done = 0
    for count in cuts:
        part = prefill(q[done : done + count], kv, [count], [done + count])
        assert torch.equal(part, whole[done : done + count])
        done += count


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantized_cache_is_read_with_its_two_scales(dtype: torch.dtype) -> None:
    """Keys a hundred times as large as latents take none of their precision."""
    lengths = [40, 75]
    paged, kv = latents(lengths, 16)
    keys, key_scales = quantize(kv.keys * 100, dtype)
    values, scales = quantize(kv.values, dtype)
    stored = PagedKV(keys, values, kv.block_tables, kv.seq_lens, key_scales, scales)
    q = queries(sum(lengths), 6)
    q[..., :D] /= 100
    read = [part.float() * scale[..., None] for part, scale in ((keys, key_scales), (values, scales))]
    plain = replace(kv, keys=read[0], values=read[1])
    last = torch.tensor([length - 1 for length in lengths]) + torch.tensor([0, lengths[0]])
    for found, exact in (
        (prefill(q, stored, lengths, lengths), prefill(q, plain, lengths, lengths)),
        (decode(q[last], stored, 1), decode(q[last], plain, 1)),
    ):
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)
    near = wanted(q[: lengths[0]] * torch.tensor([100.0] * D + [1.0] * RANK), paged.keys[0])
    off = (prefill(q, stored, lengths, lengths)[: lengths[0]] - near).abs().max()
    assert off < (0.1 if dtype == torch.int8 else 0.5)
