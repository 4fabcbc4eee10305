"""Attention of draft tokens that form a tree: each sees what came before it and its own branch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.flash_decoding import paged_decode_triton
from kernels.launch import triton
from kernels.native.attention import PagedSequences, packed_attention, packed_shapes, packed_store, packs
from kernels.paged_decode import GatherIndex, paged_decode_reference
from kernels.tree_mask import TreeMask, branches_of
from tests.kernels.paged import Paged, dense, scatter

PARENTS = [-1, 0, -1, 2, 2, 1, -1, 4]
LENGTHS = [70, 9, 130, 63]
HEADS, KV_HEADS, DIM = 6, 2, 64
ALL = -1


@pytest.fixture
def paged() -> Paged:
    return scatter(LENGTHS, kv_heads=KV_HEADS, head_dim=DIM, block_size=16)


def mask(before: int) -> TreeMask:
    """One real token, and then a tree whose first tokens, ``before`` of them, earlier steps computed; the last
    sequence has a chain instead."""
    new = len(PARENTS) - before + (before == 0)
    bits = ([0] if before == 0 else []) + branches_of(PARENTS)[before:]
    branches = torch.tensor(bits * (len(LENGTHS) - 1) + [ALL] * new)
    roots = torch.tensor([length - len(PARENTS) for length in LENGTHS[:-1]] + [LENGTHS[-1] - new])
    return TreeMask(branches, roots)


def path(node: int) -> list[int]:
    return [] if node < 0 else [*path(PARENTS[node]), node]


def expected(q: Tensor, paged: Paged, before: int, softcap: float | None = None) -> Tensor:
    new = len(q) // len(LENGTHS)
    rows = []
    for s, length in enumerate(LENGTHS):
        root = length - len(PARENTS)
        for i in range(new):
            seen = list(range(length - new + i + 1))
            if s < len(LENGTHS) - 1:
                node = len(PARENTS) - new + i
                seen = [*range(root), *(root + one for one in path(node))]
            token = q[s * new + i : s * new + i + 1]
            rows.append(dense(token, paged.keys[s][seen], paged.values[s][seen], 0.2, None, softcap))
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("before", "softcap"), [(0, None), (3, None), (0, 3.0)])
def test_in_c(paged: Paged, dtype: torch.dtype, before: int, softcap: float | None) -> None:
    if not packs(torch.device("cpu"), dtype, DIM, 16):
        pytest.skip("no C compiler, or for bfloat16 no AVX-512")
    tree = mask(before)
    new = len(tree.branches) // len(LENGTHS)
    shapes = packed_shapes(len(paged.k_cache), KV_HEADS, 16, DIM, dtype)
    keys, values = (torch.zeros(shape, dtype=dtype) for shape in shapes)
    for s, table in enumerate(paged.block_tables.tolist()):
        slots = torch.tensor([table[p // 16] * 16 + p % 16 for p in range(LENGTHS[s])])
        packed_store(paged.keys[s].to(dtype), paged.values[s].to(dtype), keys, values, slots)
    q = torch.randn(len(tree.branches), HEADS, DIM).to(dtype)
    starts = torch.arange(len(LENGTHS) + 1) * new
    sequences = PagedSequences(paged.block_tables, starts, paged.seq_lens, tree)
    out = packed_attention(q, keys, values, sequences, 0.2, softcap=softcap)
    rounded = Paged(
        [k.to(dtype) for k in paged.keys],
        [v.to(dtype) for v in paged.values],
        paged.k_cache,
        paged.v_cache,
        paged.block_tables,
        paged.seq_lens,
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(
        out.double(), expected(q, rounded, before, softcap), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("before", "softcap"), [(0, None), (3, 3.0)])
def test_in_torch(paged: Paged, before: int, softcap: float | None) -> None:
    tree = mask(before)
    q = torch.randn(len(tree.branches), HEADS, DIM)
    new = len(q) // len(LENGTHS)
    index = GatherIndex.of(paged.block_tables, paged.seq_lens, new, KV_HEADS, 16, None, tree)
    out = paged_decode_reference(q, paged.kv(), 0.2, softcap=softcap, index=index)
    torch.testing.assert_close(out.double(), expected(q, paged, before, softcap), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(triton is None, reason="no Triton")
@pytest.mark.parametrize("before", [0, 3])
def test_in_triton(paged: Paged, before: int) -> None:
    tree = mask(before)
    q = torch.randn(len(tree.branches), HEADS, DIM)
    out = paged_decode_triton(q, paged.kv(), 0.2, tree=tree)
    torch.testing.assert_close(out.double(), expected(q, paged, before), rtol=1e-4, atol=1e-4)
