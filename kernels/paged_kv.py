"""The paged KV cache as attention reads it: blocks of keys and values, and the sequences' block tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedKV:
    keys: Tensor
    """[blocks, kv_heads, block_size, head_dim], in the queries' dtype or, with scales, in int8 or float8_e4m3fn; uint8
    in 4 bits: see int4_kv.py."""
    values: Tensor
    """As ``keys``."""
    block_tables: Tensor
    """int64 [sequences, max_blocks]; entries past a sequence's end refer to any block without NaN."""
    seq_lens: Tensor
    """int64 [sequences], the new tokens included."""
    key_scales: Tensor | None = None
    """float32 [blocks, kv_heads, block_size], of a cache in 8 bits."""
    value_scales: Tensor | None = None
    keys_by_dimension: bool = False
    """Whether keys are stored as [blocks, kv_heads, head_dim, block_size], for torch's embedding bags (paged_bags.py).
    The Triton kernels do not read this layout."""

    @property
    def in_4_bits(self) -> bool:
        return self.keys.dtype == torch.uint8

    @property
    def scaled_by_token(self) -> bool:
        """Whether scores and weights are multiplied by scales, rather than what is read."""
        return self.key_scales is not None and not self.in_4_bits
