"""How long a request will take, estimated from how long the last ones took."""

from __future__ import annotations

from engine.core.rate import Rate

_WINDOW = 64
"""Answers over which the mean length is taken, about."""


class LatencyEstimator:
    """Speeds of prefill and decode, and the mean length of answers.

    What is not measured yet counts as 0, so that an estimate errs on the short side: a request is refused for what is
    known, not for what might be.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._prefill = Rate()
        self._steps = Rate()
        self._length = 0.0
        self._finished = 0

    def observe(self, seconds: float, *, prefill_tokens: int, decode_tokens: int) -> None:
        """A step took ``seconds``. A mixed step's time is attributed in proportion to its tokens."""
        if prefill_tokens:
            self._prefill.add(prefill_tokens, seconds * prefill_tokens / (prefill_tokens + decode_tokens))
        if decode_tokens:
            self._steps.add(1, seconds)

    def finish(self, generated: int) -> None:
        """An answer has ended after ``generated`` tokens."""
        self._finished = min(self._finished + 1, _WINDOW)
        self._length += (generated - self._length) / self._finished

    def estimate(self, prompt_tokens: int, max_tokens: int, ahead: int) -> float:
        """Seconds from now to the last token of a request for which ``ahead`` others must finish first.

        A running request gains one token a step, so one finishes every ``length * step / max_num_seqs`` seconds.
        """
        step = 1 / self._steps.value if self._steps.value else 0.0
        wait = max(0, ahead) * self._length * step / self._max_num_seqs
        prefill = prompt_tokens / self._prefill.value if self._prefill.value else 0.0
        return wait + prefill + max(0.0, min(max_tokens, self._length) - 1) * step
