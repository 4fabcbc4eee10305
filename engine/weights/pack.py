"""Codes into the words of AWQ's and GPTQ's files, as ``awq.py`` and ``gptq.py`` read them."""

from __future__ import annotations

import torch
from torch import Tensor

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Outputs of a word, from its lowest nibble."""


def awq(codes: Tensor, zero: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """The tensors of a layer, by the end of their name, of ``codes`` [out, in] from 0 to 15, zero points and scales
    float16 [out, groups]."""

    def words(columns: Tensor) -> Tensor:
        return _words(columns.view(len(columns), -1, 8)[..., list(_AWQ_ORDER)], 4)

    return {
        "qweight": words(codes.t().contiguous()),
        "qzeros": words(zero.t().contiguous()),
        "scales": scale.t().contiguous(),
    }


def gptq(codes: Tensor, zero: Tensor, scale: Tensor, group: Tensor, bits: int = 4) -> dict[str, Tensor]:
    """As ``awq``; ``codes`` have their inputs in the checkpoint's order, and ``group`` int [in] is theirs."""
    a_word = 32 // bits
    less = (zero - 1) & (2**bits - 1)
    return {
        "qweight": _words(codes.view(len(codes), -1, a_word), bits).t().contiguous(),
        "qzeros": _words(less.t().reshape(zero.shape[1], -1, a_word), bits),
        "scales": scale.t().contiguous(),
        "g_idx": group.int(),
    }


def _words(codes: Tensor, bits: int) -> Tensor:
    """[rows, words, 32 / bits] → int32 [rows, words], the first in the lowest bits."""
    word = (codes.long() << bits * torch.arange(32 // bits)).sum(-1)
    return torch.where(word >= 2**31, word - 2**32, word).int()
