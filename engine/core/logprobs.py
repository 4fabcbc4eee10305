"""A token's logprob, and those of the most likely tokens at its position."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities, from the model's distribution as it is: before temperature, top-k, top-p."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    """The most likely tokens and their logprobs, best first: as many as ``SamplingParams.logprobs`` says."""
