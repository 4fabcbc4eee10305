"""Drawing tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.bench.case import Case
from kernels.bench.ceilings import COPY
from kernels.sample import COLDEST, sample

_FILTERS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "unfiltered": (1.0, 0, 1.0, 0.0),
    "top-k and top-p": (0.8, 50, 0.9, 0.0),
    "top-p, flat": (1.5, 0, 0.95, 0.0),
    "min-p": (1.0, 0, 1.0, 0.05),
    "mixed": None,
}
"""Temperature, top_k (0: off), top_p, min_p."""


def sample_cases(tiny: bool) -> Iterator[Case]:
    shapes = [(6, 300)] if tiny else [(1, 128256), (64, 128256), (256, 151936), (7, 1001)]
    for rows, vocab in shapes:
        for name in _FILTERS:

            def make(
                device: torch.device, rows: int = rows, vocab: int = vocab, name: str = name
            ) -> tuple[Tensor, ...]:
                chosen = (
                    [known for known in _FILTERS.values() if known] if name == "mixed" else [_FILTERS[name]]
                )
                table = torch.tensor([chosen[row % len(chosen)] for row in range(rows)], device=device)
                temperature, top_k, top_p, min_p = (column.contiguous() for column in table.T)
                top_k = torch.where(top_k == 0, vocab, top_k).long()
                uniform = torch.rand(rows, dtype=torch.float64, device=device)
                # Quantized as bfloat16 quantizes them, they have equals.
                logits = (3 * torch.randn(rows, vocab, device=device)).bfloat16()
                return logits, temperature, top_k, top_p, min_p, uniform

            yield Case(
                "sample",
                f"{rows} x {vocab} {name}",
                make,
                sample,
                _drawn,
                bytes=2 * rows * vocab if tiny or rows in (1, 64, 256) else 0,
                ceiling=COPY,
                # A draw at the very border of two tokens may fall on either side.
                tolerance=max(0.03, 1 / rows),
            )


def _drawn(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """The formula of kernels/sample.py in float64; of equals the lowest id comes first."""
    vocab = logits.shape[1]
    greedy = temperature < COLDEST
    heat = torch.where(greedy, 1.0, temperature).double()
    values, ids = torch.softmax(logits.double() / heat[:, None], -1).sort(stable=True, dim=-1, descending=True)
    rank = torch.arange(vocab, device=logits.device)
    values = values.where((values >= min_p[:, None] * values[:, :1]) & (rank < top_k[:, None]), 0.0)
    before = values.cumsum(-1) - values
    values = values.where((before < top_p[:, None] * values.sum(-1, keepdim=True)) | (rank == 0), 0.0)
    # What asks for no order is drawn in that of the ids.
    by_id = ((top_k >= vocab) & (top_p >= 1))[:, None]
    weights = torch.where(by_id, torch.zeros_like(values).scatter(1, ids, values), values)
    ends = weights.cumsum(-1)
    place = torch.searchsorted(ends, uniform[:, None] * ends[:, -1:], right=True).clamp(max=vocab - 1)
    token = torch.where(by_id, place, ids.gather(1, place)).squeeze(1)
    return torch.where(greedy, ids[:, 0], token)
