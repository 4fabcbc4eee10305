"""Drawing tokens: logits edited, tokens drawn, guesses checked."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.bench.case import Case
from kernels.bench.ceilings import COPY
from kernels.edit_logits import Edits, edit_logits_reference, edit_logits_triton
from kernels.sample import COLDEST, sample
from kernels.verify import reject, reject_reference, verify, verify_reference

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
                # Quantized as bfloat16 quantizes them, they have equals.
                logits = (3 * torch.randn(rows, vocab, device=device)).bfloat16()
                filters = temperature, top_k, top_p, min_p
                return logits, *filters, _middles(_chances(logits, *filters)[1])

            yield Case(
                "sample",
                f"{rows} x {vocab} {name}",
                make,
                sample,
                _drawn,
                bytes=2 * rows * vocab if tiny or rows in (1, 64, 256) else 0,
                ceiling=COPY,
            )


def _drawn(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """The formula of kernels/sample.py in float64."""
    order, chances = _chances(logits, temperature, top_k, top_p, min_p)
    place = torch.searchsorted(chances.cumsum(-1), uniform[:, None], right=True).clamp(
        max=logits.shape[1] - 1
    )
    return torch.where(temperature < COLDEST, order[:, 0], order.gather(1, place).squeeze(1))


def _chances(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens in the order in which they are drawn, and how likely each is; of equals the lowest id comes first."""
    vocab = logits.shape[1]
    greedy = temperature < COLDEST
    heat = torch.where(greedy, 1.0, temperature).double()
    values, ids = torch.softmax(logits.double() / heat[:, None], -1).sort(
        stable=True, dim=-1, descending=True
    )
    rank = torch.arange(vocab, device=logits.device)
    values = values.where((values >= min_p[:, None] * values[:, :1]) & (rank < top_k[:, None]), 0.0)
    before = values.cumsum(-1) - values
    values = values.where((before < top_p[:, None] * values.sum(-1, keepdim=True)) | (rank == 0), 0.0)
    # What asks for no order is drawn in that of the ids.
    by_id = ((top_k >= vocab) & (top_p >= 1) & ~greedy)[:, None]
    weights = torch.where(by_id, torch.zeros_like(values).scatter(1, ids, values), values)
    return torch.where(by_id, rank, ids), weights / weights.sum(-1, keepdim=True)


def _middles(chances: Tensor) -> Tensor:
    """Uniform numbers, each in the middle of a token's share, of four tokens drawn the likeliest: at the border of two,
    rounding decides which it is."""
    some = torch.multinomial(chances, 4, replacement=True)
    likeliest = some.gather(1, chances.gather(1, some).argmax(1, keepdim=True))
    return (chances.cumsum(-1) - chances / 2).gather(1, likeliest).squeeze(1)


def edit_cases(tiny: bool) -> Iterator[Case]:
    """Every second row has a mask, and all have stops, biases, and penalties for some tokens."""
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


def verify_cases(tiny: bool) -> Iterator[Case]:
    for requests, guesses, vocab in (
        [(3, 2, 100)] if tiny else [(1, 4, 128256), (64, 4, 128256), (9, 33, 1001)]
    ):

        def make(
            device: torch.device, requests: int = requests, guesses: int = guesses, vocab: int = vocab
        ) -> tuple[Tensor, ...]:
            rows = requests * (guesses + 1)
            p, q = (torch.softmax(3 * torch.randn(rows, vocab, device=device), -1) for _ in range(2))
            # As alike as a draft's are, so that some guesses count and some do not.
            q = 0.7 * p + 0.3 * q
            guess = torch.multinomial(q, 1).flatten()
            starts = torch.arange(0, rows + 1, guesses + 1, dtype=torch.int32, device=device)
            return p, q, guess, torch.rand(rows, device=device), torch.rand(requests, device=device), starts

        name = f"{requests} x {guesses} guesses"
        yield Case(
            "verify",
            f"{name} x {vocab}, rejection",
            make,
            reject,
            reject_reference,
            bytes=8 * requests * vocab if tiny or vocab > 1001 else 0,
            ceiling=COPY,
            tolerance=max(0.03, 1 / requests),
        )
        yield Case(
            "verify",
            name,
            lambda device, shape=(requests, guesses + 1): (
                torch.randint(3, shape, device=device).flatten(),
                torch.randint(3, shape, device=device).flatten(),
                torch.arange(0, shape[0] * shape[1] + 1, shape[1], dtype=torch.int32, device=device),
            ),
            verify,
            verify_reference,
        )
