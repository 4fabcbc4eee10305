"""Prompt logprobs, by which callers score given texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.core.logprobs import TokenLogprobs
from engine.core.plan import ScheduledRequest

_ROWS = 64
"""Rows whose logits are held at a time: a vocabulary of 150,000 takes 40 MB for them."""


def score(
    logits: Callable[[range], Tensor], scored: Sequence[tuple[ScheduledRequest, int]]
) -> dict[int, list[TokenLogprobs]]:
    """The logprobs of the prompts' tokens that follow those of this step, by request.

    ``logits`` makes [rows, vocabulary] of some of the step's rows.
    ``scored``: requests that ask for it, each with the row of its first token. Logprobs are log-softmaxes of the
    unmodified logits, as those of answers are.
    """
    logprobs_of: dict[int, list[TokenLogprobs]] = {}
    for scheduled, first in scored:
        until = min(
            scheduled.start + len(scheduled.tokens) - scheduled.num_draft_tokens, scheduled.prompt_length - 1
        )
        following = scheduled.history[scheduled.start + 1 : until + 1]
        found = logprobs_of[scheduled.request_id] = []
        for begin in range(0, len(following), _ROWS):
            tokens = following[begin : begin + _ROWS]
            rows = range(first + begin, first + begin + len(tokens))
            found += _likely(logits(rows), tokens, scheduled.prompt_logprobs or 0)
    return logprobs_of


def _likely(logits: Tensor, tokens: list[int], most: int) -> list[TokenLogprobs]:
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None]).squeeze(1).tolist()
    values, ids = (found.tolist() for found in logprobs.topk(min(most, logits.shape[1]), dim=-1))
    return [
        TokenLogprobs(token, own, list(zip(top, likely, strict=True)))
        for token, own, top, likely in zip(tokens, chosen, ids, values, strict=True)
    ]
