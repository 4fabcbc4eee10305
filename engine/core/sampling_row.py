"""One token that a step samples, in plain Python, for sampler, grammars and logit editor."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.sampling_params import SamplingParams


@dataclass(slots=True)
class SamplingRow:
    """A row of logits: for which request a token is sampled from it, and after which tokens."""

    request_id: int
    sampling: SamplingParams
    history: list[int]
    """The request's tokens, prompt first. Read-only."""
    prompt_length: int
    draft_tokens: list[int]
    """Between ``history`` and this token: of a tree, those of its branch."""

    @property
    def position(self) -> int:
        """The sampled token's."""
        return len(self.history) + len(self.draft_tokens)
