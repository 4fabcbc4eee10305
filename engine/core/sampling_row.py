"""One token that a step draws, in plain Python: what samplers, grammars and editors of logits ask about it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.sampling_params import SamplingParams


@dataclass(slots=True)
class SamplingRow:
    """A token to be drawn: for whom, and after what."""

    request_id: int
    sampling: SamplingParams
    history: list[int]
    """The request's tokens, prompt first. Only to be read."""
    prompt_length: int
    draft_tokens: list[int]
    """Those that stand between ``history`` and this token."""
    draft_token: int | None = None
    """What this token is guessed to be; ``None`` after the last guess."""

    @property
    def position(self) -> int:
        """Where the token will stand."""
        return len(self.history) + len(self.draft_tokens)
