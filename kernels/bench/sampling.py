"""Sampling: logits edited, and tokens drawn from them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.bench.case import Case
from kernels.bench.ceilings import COPY
from kernels.edit_logits import Edits, edit_logits_reference, edit_logits_triton
from kernels.sample import MIN_TEMPERATURE, sample

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
                # Rounding to bfloat16 makes ties.
                logits = (3 * torch.randn(rows, vocab, device=device)).bfloat16()
                filters = temperature, top_k, top_p, min_p
                return logits, *filters, _midpoints(_distribution(logits, *filters)[1])

            yield Case(
                "sample",
                f"{rows} x {vocab} {name}",
                make,
                sample,
                _sample_exact,
                bytes=2 * rows * vocab if tiny or rows in (1, 64, 256) else 0,
                ceiling=COPY,
            )


def _sample_exact(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """The formula of kernels/sample.py in float64."""
    order, probs = _distribution(logits, temperature, top_k, top_p, min_p)
    rank = torch.searchsorted(probs.cumsum(-1), uniform[:, None], right=True).clamp(max=logits.shape[1] - 1)
    return torch.where(temperature < MIN_TEMPERATURE, order[:, 0], order.gather(1, rank).squeeze(1))


def _distribution(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens in the order of the cumulative distribution, and their probabilities; ties are in the order of ids."""
    vocab = logits.shape[1]
    greedy = temperature < MIN_TEMPERATURE
    temperature = torch.where(greedy, 1.0, temperature).double()
    values, ids = torch.softmax(logits.double() / temperature[:, None], -1).sort(
        stable=True, dim=-1, descending=True
    )
    rank = torch.arange(vocab, device=logits.device)
    values = values.where((values >= min_p[:, None] * values[:, :1]) & (rank < top_k[:, None]), 0.0)
    before = values.cumsum(-1) - values
    values = values.where((before < top_p[:, None] * values.sum(-1, keepdim=True)) | (rank == 0), 0.0)
    # Without top-k and top-p the order is that of the ids.
    by_id = ((top_k >= vocab) & (top_p >= 1) & ~greedy)[:, None]
    weights = torch.where(by_id, torch.zeros_like(values).scatter(1, ids, values), values)
    return torch.where(by_id, rank, ids), weights / weights.sum(-1, keepdim=True)


def _midpoints(probs: Tensor) -> Tensor:
    """Uniform numbers in the middle of a token's interval of the cumulative distribution, for the most probable of four
    random tokens: at an interval's boundary rounding would decide which token is drawn."""
    some = torch.multinomial(probs, 4, replacement=True)
    likeliest = some.gather(1, probs.gather(1, some).argmax(1, keepdim=True))
    return (probs.cumsum(-1) - probs / 2).gather(1, likeliest).squeeze(1)


def edit_cases(tiny: bool) -> Iterator[Case]:
    """Every second row has a mask; all rows have stop tokens, biases and penalties."""
    for rows, vocab, count in (
        [(4, 300, 7)] if tiny else [(1, 128256, 500), (64, 128256, 500), (7, 1001, 100)]
    ):

        def make(
            device: torch.device, rows: int = rows, vocab: int = vocab, count: int = count
        ) -> tuple[Tensor, Edits]:
            mask_of = torch.arange(rows, dtype=torch.int32, device=device)
            bits = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), dtype=torch.int32, device=device)
            starts = count * torch.arange(3 * rows + 1, dtype=torch.int32, device=device)
            tokens = torch.stack([torch.randperm(vocab, device=device)[:count] for _ in range(3 * rows)])
            first, second = (torch.rand(tokens.numel(), device=device) + 0.5 for _ in range(2))
            edits = Edits(
                mask_of.where(mask_of % 2 == 0, -1), bits, starts, tokens.int().flatten(), first, second
            )
            return (3 * torch.randn(rows, vocab, device=device)).bfloat16(), edits

        yield Case(
            "edit_logits",
            f"{rows} x {vocab}, {count} each",
            make,
            edit_logits_triton,
            edit_logits_reference,
            bytes=6 * rows * vocab if tiny or vocab > 1001 else 0,
            ceiling=COPY,
        )
