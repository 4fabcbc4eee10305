"""The paged cache: writing keys and values, attention of few new tokens and of many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernels.bench.case import Case
from kernels.bench.ceilings import COPY, sdpa
from kernels.bench.rivals import decode_rivals, prefill_rivals
from kernels.int4_kv import int4_layout
from kernels.paged_decode import paged_decode
from kernels.paged_kv import PagedKV
from kernels.paged_prefill import paged_prefill
from kernels.store_int4_kv import store_int4_kv, store_int4_kv_reference
from kernels.store_kv import store_kv, store_kv_reference

NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
FP8, INT8 = torch.float8_e4m3fn, torch.int8
TOLERANCE = {torch.bfloat16: 3e-2, torch.float32: 1e-4}
"""Attention weights are rounded to the dtype of the values before the second product."""
_WIDE = 1 << 13
"""Keys of a batch from which the reference uses float32."""
_CHUNK = 512
"""Queries whose scores the reference holds at a time."""


@dataclass(frozen=True)
class Shape:
    lengths: tuple[int, ...]
    """The sequences' lengths, new tokens included."""
    new: tuple[int, ...] | int = 1
    """New tokens of each sequence, or of all."""
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    cache: torch.dtype | None = None
    """The cache's dtype, if it differs."""
    window: int | None = None
    softcap: float | None = None
    block_size: int = 16
    timed: bool = False
    target: float | None = None
    ceiling: str = COPY

    @property
    def kv(self) -> torch.dtype:
        return self.cache or self.dtype

    @property
    def news(self) -> tuple[int, ...]:
        return (self.new,) * len(self.lengths) if isinstance(self.new, int) else self.new

    @property
    def name(self) -> str:
        first, same = self.lengths[0], len(set(self.lengths)) == 1
        text = f"{len(self.lengths)} x {first}" if same else f"{len(self.lengths)} up to {max(self.lengths)}"
        if self.news != (1,) * len(self.lengths):
            text += f", {max(self.news)} new"
        text += f", {self.heads}/{self.kv_heads} x {self.head_dim} {NAMES[self.kv]}"
        text += "" if self.window is None else f" window={self.window}"
        return text + ("" if self.softcap is None else f" softcap={self.softcap:g}")

    def make(self, device: torch.device) -> tuple[Any, ...]:
        counts = [-(-length // self.block_size) for length in self.lengths]
        blocks = sum(counts) + 3
        order = (torch.randperm(blocks - 1, device=device) + 1).split([*counts, 2])
        tables = torch.zeros(len(counts), max(counts), dtype=torch.int64, device=device)
        for table, ids in zip(tables, order, strict=False):
            table[: len(ids)] = ids
        # Query heads are views of one product for queries, keys and values, as in the engine.
        q = torch.randn(sum(self.news), self.heads + 2 * self.kv_heads, self.head_dim, device=device).to(
            self.dtype
        )
        k_cache, v_cache, k_scales, v_scales = self.caches(blocks, device)
        lengths = torch.tensor(self.lengths, device=device)
        return q[:, : self.heads], k_cache, v_cache, tables, lengths, k_scales, v_scales

    def caches(self, blocks: int, device: torch.device) -> tuple[Tensor | None, ...]:
        """Keys, values, and their scales if they are quantized."""
        shape = (blocks, self.kv_heads, self.block_size, self.head_dim)
        if self.kv == INT8:
            codes = (torch.randint(-127, 128, shape, dtype=INT8, device=device) for _ in range(2))
        else:
            codes = (torch.randn(shape, device=device).to(self.kv) for _ in range(2))
        scales: tuple[Tensor | None, ...] = (None, None)
        if self.kv in (INT8, FP8):
            scales = tuple(
                (torch.rand(shape[:3], device=device) + 0.5) * (1 / 64 if self.kv == INT8 else 1)
                for _ in range(2)
            )
        return *codes, *scales

    @property
    def plain(self) -> bool:
        """Whether rivals support it: one length, and neither window, softcap nor 8 bits."""
        bare = self.window is None and self.softcap is None and self.cache is None
        return bare and self.timed and len(set(self.lengths)) == 1

    def pairs(self) -> int:
        """Pairs of a query and a key that it sees."""
        return sum(
            min(position + 1, self.window or position + 1)
            for length, new in zip(self.lengths, self.news, strict=True)
            for position in range(length - new, length)
        )

    def cache_bytes(self) -> int:
        """Bytes of the keys and values that are read, without scales."""
        seen = sum(
            min(length, (self.window or length) + new - 1)
            for length, new in zip(self.lengths, self.news, strict=True)
        )
        return 2 * seen * self.kv_heads * self.head_dim * self.kv.itemsize


def attention(
    shape: Shape,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
) -> Tensor:
    """The formula, sequence by sequence and head by head, over gathered keys and values."""
    dtype = torch.float64 if sum(shape.lengths) < _WIDE else torch.float32
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    group, start = shape.heads // shape.kv_heads, 0
    for s, (length, new) in enumerate(zip(shape.lengths, shape.news, strict=True)):
        ids = tables[s, : -(-length // shape.block_size)]
        keys = _joined(k_cache[ids], k_scales, ids, dtype)[:, :length]
        values = _joined(v_cache[ids], v_scales, ids, dtype)[:, :length]
        positions = torch.arange(length, device=q.device)
        for first in range(0, new, _CHUNK):
            rows = slice(start + first, start + min(new, first + _CHUNK))
            queries = q[rows].to(dtype).unflatten(1, (-1, group))
            q_positions = torch.arange(
                length - new + first, length - new + first + len(queries), device=q.device
            )
            for head in range(shape.kv_heads):
                scores = queries[:, head] @ keys[head].T * shape.head_dim**-0.5
                if shape.softcap is not None:
                    scores = torch.tanh(scores / shape.softcap) * shape.softcap
                mask = positions > q_positions[:, None]
                if shape.window is not None:
                    mask |= positions <= q_positions[:, None] - shape.window
                scores.masked_fill_(mask[:, None], float("-inf"))
                out[rows, head * group : (head + 1) * group] = scores.softmax(-1) @ values[head]
        start += new
    return out


def _joined(blocks: Tensor, scales: Tensor | None, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """[kv_heads, tokens, head_dim]"""
    wide = blocks.float() if scales is None else blocks.float() * scales[ids][..., None]
    return wide.transpose(0, 1).flatten(1, 2).to(dtype)


def _shapes(table: dict[bool, list[Shape]], tiny: bool) -> list[Shape]:
    """The interpreter has no bfloat16 products."""
    return [replace(shape, dtype=torch.float32) for shape in table[True]] if tiny else table[False]


def decode_cases(tiny: bool) -> Iterator[Case]:
    for shape in _shapes(DECODES, tiny):

        def run(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            tables: Tensor,
            lengths: Tensor,
            *scales: Tensor | None,
            shape: Shape = shape,
        ) -> Tensor:
            kv = PagedKV(k, v, tables, lengths, *scales)
            return paged_decode(q, kv, shape.head_dim**-0.5, shape.window, shape.softcap)

        yield Case(
            "paged_decode",
            shape.name,
            shape.make,
            run,
            lambda q, k, v, tables, lengths, *scales, shape=shape: attention(shape, q, k, v, tables, *scales),
            bytes=shape.cache_bytes() if shape.timed else 0,
            ceiling=shape.ceiling,
            target=shape.target,
            tolerance=TOLERANCE[shape.dtype],
            rivals=decode_rivals(shape.lengths[0], shape.head_dim**-0.5)
            if shape.plain and shape.new == 1
            else (),
        )


def prefill_cases(tiny: bool) -> Iterator[Case]:
    for shape in _shapes(PREFILLS, tiny):

        def make(device: torch.device, shape: Shape = shape) -> tuple[Any, ...]:
            starts = torch.tensor([0, *shape.news], device=device).cumsum(0)
            return starts, *shape.make(device)

        def run(
            starts: Tensor,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            tables: Tensor,
            lengths: Tensor,
            *scales: Tensor | None,
            shape: Shape = shape,
        ) -> Tensor:
            kv = PagedKV(k, v, tables, lengths, *scales)
            return paged_prefill(q, kv, starts, shape.head_dim**-0.5, shape.window, shape.softcap)

        yield Case(
            "paged_prefill",
            shape.name,
            make,
            run,
            lambda starts, q, k, v, tables, lengths, *scales, shape=shape: attention(
                shape, q, k, v, tables, *scales
            ),
            flops=4 * shape.heads * shape.head_dim * shape.pairs() if shape.timed else 0,
            ceiling=shape.ceiling,
            target=shape.target,
            tolerance=TOLERANCE[shape.dtype],
            rivals=prefill_rivals(shape.lengths[0], shape.heads, shape.head_dim**-0.5)
            if shape.plain and shape.news == shape.lengths
            else (),
        )


def store_cases(tiny: bool) -> Iterator[Case]:
    counts = [(1, 2, 64), (3, 1, 80)] if tiny else [(1, 1, 96), (7, 3, 80), (64, 8, 128), (8192, 8, 128)]
    for tokens, heads, head_dim in counts:
        for kv in (None, INT8, FP8):
            shape = Shape((tokens,), heads=heads, kv_heads=heads, head_dim=head_dim, cache=kv)

            def make(device: torch.device, shape: Shape = shape) -> tuple[Any, ...]:
                tokens, blocks = shape.lengths[0], -(-shape.lengths[0] // shape.block_size) + 2
                qkv = torch.randn(tokens, 3 * shape.heads, shape.head_dim, device=device).to(shape.dtype)
                slots = torch.randperm(blocks * shape.block_size, device=device)[:tokens]
                k_cache, v_cache, k_scales, v_scales = shape.caches(blocks, device)
                return *qkv.chunk(3, 1)[1:], k_cache, v_cache, slots, k_scales, v_scales

            def run(
                k: Tensor,
                v: Tensor,
                k_cache: Tensor,
                v_cache: Tensor,
                slots: Tensor,
                *scales: Tensor | None,
                store: Any = store_kv,
            ) -> list[Tensor]:
                store(k, v, k_cache, v_cache, slots, *scales)
                # As bytes, which must be equal.
                return [cache.view(torch.uint8) for cache in (k_cache, v_cache, *scales) if cache is not None]

            yield Case(
                "store_kv",
                f"{tokens} x {heads} x {head_dim} {NAMES[shape.kv]}",
                make,
                run,
                lambda *inputs, run=run: run(*inputs, store=store_kv_reference),
                bytes=2 * tokens * heads * head_dim * (2 + shape.kv.itemsize) if tokens >= 64 or tiny else 0,
                ceiling=COPY,
            )


def store_int4_cases(tiny: bool) -> Iterator[Case]:
    """Blocks that are filled, and blocks that grow by a token."""
    counts = [(3, 1, 64)] if tiny else [(7, 3, 80), (64, 8, 128), (8192, 8, 128)]
    for tokens, heads, head_dim in counts:
        for grows in (False, True):

            def make(
                device: torch.device,
                tokens: int = tokens,
                heads: int = heads,
                head_dim: int = head_dim,
                grows: bool = grows,
            ) -> tuple[Any, ...]:
                qkv = torch.randn(tokens, 3 * heads, head_dim, device=device, dtype=torch.bfloat16)
                each = torch.arange(tokens, device=device)
                blocks = tokens if grows else -(-tokens // 16)
                slots = each * 16 + each % 15 + 1 if grows else each
                layout = int4_layout(blocks, heads, 16, head_dim)
                cache = [torch.zeros(size, dtype=dtype, device=device) for size, dtype in layout]
                return *qkv.chunk(3, 1)[1:], *cache, slots

            def run(
                k: Tensor,
                v: Tensor,
                keys: Tensor,
                values: Tensor,
                key_scales: Tensor,
                value_scales: Tensor,
                slots: Tensor,
                store: Any = store_int4_kv,
            ) -> list[Tensor]:
                store(k, v, keys, values, slots, key_scales, value_scales)
                return [cache.view(torch.uint8) for cache in (keys, values, key_scales, value_scales)]

            yield Case(
                "store_int4_kv",
                f"{tokens} x {heads} x {head_dim} {'growing' if grows else 'whole'}",
                make,
                run,
                lambda *inputs, run=run: run(*inputs, store=store_int4_kv_reference),
            )


_ODD = Shape((1, 15, 16, 17, 255, 257, 1000))
DECODES = {
    True: [
        Shape((17, 17), heads=2, kv_heads=2, head_dim=64, timed=True),
        Shape((1, 17), heads=2, kv_heads=2, head_dim=64, timed=True),
        Shape((33, 5), 2, heads=4, kv_heads=1, head_dim=80, cache=INT8, window=7, softcap=20.0),
        Shape((3, 16), heads=2, kv_heads=1, head_dim=64, cache=FP8),
    ],
    False: [
        *(
            Shape((length,) * batch, timed=True, cache=kv, target=target)
            for kv, target in ((None, 0.85), (FP8, 0.75), (INT8, None))
            for batch, length in ((16, 4096), (64, 1024), (64, 4096), (1, 65536))
        ),
        Shape((16384, *(512,) * 96), timed=True, target=0.85),
        Shape((4096,) * 16, heads=16, timed=True, target=0.85),
        Shape((4096,) * 16, 4, timed=True),
        Shape((8192,) * 32, window=1024, timed=True),
        Shape((128,) * 4, timed=True),
        replace(_ODD, heads=7, kv_heads=1, head_dim=64),
        replace(_ODD, heads=8, kv_heads=8, head_dim=80, softcap=30.0),
        replace(_ODD, heads=32, kv_heads=8, head_dim=96, window=5),
        replace(_ODD, heads=28, kv_heads=4, head_dim=128, cache=INT8, window=100),
        replace(_ODD, heads=8, kv_heads=1, head_dim=256, cache=FP8),
        Shape((5, 16, 17, 300), 4, window=9, cache=FP8),
    ],
}
PREFILLS = {
    True: [
        Shape((17, 17), 17, heads=4, kv_heads=2, head_dim=64, timed=True),
        Shape((20, 5), (3, 5), heads=4, kv_heads=1, head_dim=80, cache=INT8, window=7, softcap=20.0),
    ],
    False: [
        Shape((8192,), 8192, timed=True, target=0.75, ceiling=sdpa(1, 8192)),
        Shape((2048,) * 8, 2048, timed=True, target=0.75, ceiling=sdpa(8, 2048)),
        Shape((8192,), 2048, timed=True, ceiling=sdpa(1, 8192)),
        Shape((8192,), 8192, timed=True, cache=FP8, ceiling=sdpa(1, 8192)),
        Shape((8192,), 8192, timed=True, cache=INT8, ceiling=sdpa(1, 8192)),
        Shape((8192,), 8192, timed=True, window=1024, ceiling=sdpa(1, 8192)),
        Shape((512,) * 16, 512, heads=16, timed=True, ceiling=sdpa(8, 2048)),
        Shape((1, 16, 17, 130, 600), (1, 1, 17, 65, 300), heads=7, kv_heads=1, head_dim=64),
        Shape((33, 128, 129), (33, 128, 2), heads=8, kv_heads=8, head_dim=80, softcap=30.0),
        Shape((500, 63), (500, 63), heads=32, kv_heads=8, head_dim=96, window=5),
        Shape((700, 64), (130, 64), heads=28, kv_heads=4, cache=INT8, window=100),
        Shape((300, 10), (299, 10), heads=8, kv_heads=1, head_dim=256, cache=FP8),
    ],
}
