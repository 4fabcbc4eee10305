"""Which draft tokens are accepted: those that equal the token sampled at their position, up to the first that does
not. Of a tree's tokens one branch at most is.

Every token is sampled from the model's own distribution by its own uniform number, whether a draft token stands there
or not; draft tokens only decide whether the samples after them are valid. So speculation changes no token. For draft
tokens chosen without randomness this is rejection sampling (https://arxiv.org/abs/2211.17192): draft token x is
accepted with probability p(x), and what replaces it is distributed as p without x. ``speculative.py`` has the
argument in full.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.sampling_row import SamplingRow


def accepted(sampling_rows: Sequence[SamplingRow], tokens: Sequence[int]) -> list[bool]:
    """Which of ``tokens``, one sampled for each row, are valid: those that were sampled after what was sampled before
    them."""
    valid, kept = [], []
    for row, token in zip(sampling_rows, tokens, strict=True):
        if not row.draft_tokens:
            kept = []
        valid.append(row.draft_tokens == kept)
        if valid[-1]:
            kept.append(token)
    return valid


def accepted_tokens(
    sampling_rows: Sequence[SamplingRow], tokens: Sequence[int], valid: Sequence[bool]
) -> dict[int, list[int]]:
    """The valid tokens, by request."""
    found: dict[int, list[int]] = {}
    for row, token, keep in zip(sampling_rows, tokens, valid, strict=True):
        if keep:
            found.setdefault(row.request_id, []).append(token)
    return found
