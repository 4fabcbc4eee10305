"""How long a request will take, judged by how long the last ones took."""

from __future__ import annotations

from engine.core.rate import Rate

_REMEMBERED = 64
"""Answers over which the mean length is taken, about."""


class Pace:
    """Speeds of prefill and decode, and the mean length of answers.

    What is not measured yet counts as nothing, so that an estimate errs on the short side: a request is turned away
    for what is known, not for what is feared.
    """

    def __init__(self, seats: int) -> None:
        self._seats = seats
        """Requests that run together at most."""
        self._prefill = Rate()
        self._steps = Rate()
        self._length = 0.0
        self._ended = 0

    def observe(self, seconds: float, *, prefill_tokens: int, decode_tokens: int) -> None:
        """A step took ``seconds``. Its time is shared out by tokens where it was mixed."""
        if prefill_tokens:
            self._prefill.add(prefill_tokens, seconds * prefill_tokens / (prefill_tokens + decode_tokens))
        if decode_tokens:
            self._steps.add(1, seconds)

    def end(self, generated: int) -> None:
        """An answer has come to its end after ``generated`` tokens."""
        self._ended = min(self._ended + 1, _REMEMBERED)
        self._length += (generated - self._length) / self._ended

    def estimate(self, prompt_tokens: int, max_tokens: int, places: int) -> float:
        """Seconds from now to the last token of a request for which ``places`` others must first end.

        One running request gains one token a step, so a place falls free every ``length * step / seats`` seconds.
        """
        step = 1 / self._steps.value if self._steps.value else 0.0
        wait = max(0, places) * self._length * step / self._seats
        prefill = prompt_tokens / self._prefill.value if self._prefill.value else 0.0
        return wait + prefill + max(0.0, min(max_tokens, self._length) - 1) * step
