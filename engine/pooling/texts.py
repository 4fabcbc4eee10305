"""A batch of texts, laid end to end instead of padded: linear layers see all tokens as rows, attention each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor


@dataclass(slots=True)
class Texts:
    tokens: Tensor
    """int64 [tokens]"""
    types: Tensor
    """int64 [tokens]: 0 in a pair's first text, 1 in its second."""
    positions: Tensor
    """int64 [tokens]: from 0 in each text."""
    lengths: list[int]
    groups: list[tuple[int, int]]
    """(texts, length) of neighbours that are equally long, which attention takes together."""
    masks: dict[tuple[int, bool, int | None], Tensor] = field(default_factory=dict)
    """Those of ``attention.py``, made once a batch, not once a layer."""

    @classmethod
    def of(cls, rows: Sequence[list[int]], firsts: Sequence[int], device: torch.device) -> Texts:
        """``firsts``: tokens of each that are of a pair's first text."""
        lengths = [len(row) for row in rows]
        positions = torch.cat([torch.arange(length) for length in lengths])
        firsts_by_token = torch.repeat_interleave(torch.tensor(firsts), torch.tensor(lengths))
        return cls(
            torch.tensor([token for row in rows for token in row]).to(device),
            (positions >= firsts_by_token).long().to(device),
            positions.to(device),
            lengths,
            [(len(list(same)), length) for length, same in groupby(lengths)],
        )
