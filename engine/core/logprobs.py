"""How likely the model found a token, and which others it would rather or also have said."""

from __future__ import annotations

from typing import NamedTuple


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities, from the model's distribution as it is: before temperature, top-k, top-p."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    """The most likely tokens and their logprobs, best first: as many as ``SamplingParams.logprobs`` says."""
