"""How long a request will take, estimated from how long the last ones took, and how far such estimates are off."""

from __future__ import annotations

from collections import OrderedDict, deque

from engine.core.rate import Rate

_WINDOW = 64
"""Answers over which the mean length is taken, about."""
CHANCE = 0.05
"""Of meeting a deadline: a request with less is refused."""
_ERRORS = 200
"""The last ones of each kind of request."""
_KINDS = 512

Kind = tuple[str | None, int]
"""Tenant (``None``: all together), and the order of magnitude of how many must finish first: with more of them, what a
single one takes matters less."""


class LatencyEstimator:
    """Speeds of prefill and decode, the mean length of answers, and the distribution of what requests took relative to
    what was estimated.

    How long an answer will be is not known, so an estimate alone says little: answers of a tenth of the mean length
    are common. But how the truth is distributed around estimates is known from the requests that have finished, and
    holds for the next one, whatever the distribution is (split conformal prediction,
    https://arxiv.org/abs/2107.07511).
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._prefill = Rate()
        self._steps = Rate()
        self._length = 0.0
        self._finished = 0
        self._errors: OrderedDict[Kind, deque[float]] = OrderedDict()
        """Seconds taken as a multiple of those estimated; the kind that was used last is the last."""

    @property
    def prefill_speed(self) -> float:
        """Tokens a second; 0 before the first measurement."""
        return self._prefill.value

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

    def compare(self, kind: Kind, estimated: float, seconds: float) -> None:
        """A request of ``kind`` took ``seconds`` from its submission to its end."""
        if estimated <= 0:
            return
        for key in (kind, (None, kind[1])):
            errors = self._errors.setdefault(key, deque(maxlen=_ERRORS))
            self._errors.move_to_end(key)
            errors.append(seconds / estimated)
        while len(self._errors) > _KINDS:
            self._errors.popitem(last=False)

    def estimate(self, prompt_tokens: int, max_tokens: int, ahead: int) -> float:
        """Seconds from now to the last token of a request for which ``ahead`` others must finish first.

        A running request gains one token a step, so one finishes every ``length * step / max_num_seqs`` seconds.
        What is not measured yet counts as 0.
        """
        step = 1 / self._steps.value if self._steps.value else 0.0
        wait = max(0, ahead) * self._length * step / self._max_num_seqs
        prefill = prompt_tokens / self._prefill.value if self._prefill.value else 0.0
        return wait + prefill + max(0.0, min(max_tokens, self._length) - 1) * step

    def soonest(self, kind: Kind, estimated: float, chance: float = CHANCE) -> float:
        """Seconds that it takes at least, except with a probability of ``chance``; 0 where too little is known."""
        for key in (kind, (None, kind[1])):
            errors = self._errors.get(key, ())
            place = int(chance * (len(errors) + 1))
            if place:
                return estimated * sorted(errors)[place - 1]
        return 0.0

    def doubt(self, kind: Kind) -> None:
        """A request of ``kind`` was refused, of which nobody learns what it would have taken: the oldest of what is
        known counts no longer, so that refusals for what is past come to an end."""
        for key in (kind, (None, kind[1])):
            if errors := self._errors.get(key):
                errors.popleft()

    @staticmethod
    def kind(tenant: str, ahead: int) -> Kind:
        return tenant, max(0, ahead).bit_length()
