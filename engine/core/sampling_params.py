"""How a request's tokens are to be drawn, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    """Most tokens to generate, at least 1."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    seed: int = 0
    """64 bits. The n-th token of a request is drawn from (seed, n) alone, so neighbours in the batch, chunking
    and preemption leave it as it is."""
    stop_token_ids: frozenset[int] = frozenset()
    """Any of these ends the request; it is the last of its tokens."""
    logprobs: int | None = None
    """Most likely tokens to tell beside each token drawn; ``None``: no logprobs at all."""
