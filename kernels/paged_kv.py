"""What attention reads: a cache in blocks, and which of them hold the keys and values of some sequences."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedKV:
    keys: Tensor
    """[blocks, kv_heads, block_size, head_dim], in the dtype of queries or, with scales, in int8 or float8_e4m3fn."""
    values: Tensor
    """As ``keys``."""
    block_tables: Tensor
    """int64 [sequences, max_blocks]; entries past a sequence's end name any finite block."""
    seq_lens: Tensor
    """int64 [sequences], the new tokens included."""
    key_scales: Tensor | None = None
    """Of a quantized cache: float32 [blocks, kv_heads, block_size]."""
    value_scales: Tensor | None = None
    keys_by_dimension: bool = False
    """Whether keys lie as [blocks, kv_heads, head_dim, block_size], which torch's embedding bags read: see
    paged_bags.py. Triton's kernels do not."""
