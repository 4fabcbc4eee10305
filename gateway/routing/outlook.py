"""What a replica is expected to do with a prompt that is sent now: the seconds to its first token.

    seconds = base + (tokens before it + its own that are not cached) * seconds a token + wait for KV memory

The seconds a token are learned from each first token that comes (a regression of its seconds on the tokens that were
to be computed), so that a constant error of estimated tokens cancels out; before that they are what the replica tells,
or the best that is known of another one. **What is believed fades with the time in which nothing put it to the test**:
a replica that was slow once, or says that it is full, is soon asked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.engine_load import EngineLoad

SHARE = 0.05
"""Of the last measurement in what is known, after the first ones."""
HALF_LIFE = 10.0
"""Seconds without a request, after which half is believed of what is known to a replica's disadvantage."""
KV_FULL = 0.95
"""The share of KV memory beyond which a request waits for others to end."""
FASTEST = 1e-8
"""Seconds a token."""
UNKNOWN_SPEED = 1e-4
"""Seconds a token where nothing is known of any replica: then only tokens decide."""
JUDGED = 0.75
"""The weight of the last request in the trust in a replica's figures."""
MOST_WAITING = 1000
"""Requests that a replica may say are waiting; more are taken for so many."""


@dataclass(slots=True)
class Prompt:
    """On its way at a replica."""

    tokens: float
    """To be computed; 0 once they are."""
    due: float = 0.0


class Outlook:
    """One replica's. ``clock`` in seconds."""

    __slots__ = (
        "_ahead",
        "_clock",
        "_counted",
        "_expected",
        "_lasting",
        "_measured",
        "_product",
        "_seconds",
        "_square",
        "_tokens",
        "asked",
        "running",
        "trust",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.asked = clock()
        """When it was last sent a request, or came to be known."""
        self.running = 0
        """Requests that were sent from here and have not ended."""
        self._ahead = 0.0
        self._expected: deque[Prompt] = deque()
        """Those whose answers' first tokens are not seen."""
        self._counted = (0.0, 0.0)
        """Tokens of prompts, and cached ones, as it told them last."""
        self._measured = 0
        self._tokens = self._seconds = self._square = self._product = 0.0
        """Means: of tokens to be computed, of seconds, of tokens squared, of both multiplied."""
        self.trust = 1.0
        """0 to 1: how much of the waiting that it told of there really was."""
        self._lasting = 0.0
        """Seconds that requests last, from being sent to their end."""

    @property
    def ahead(self) -> float:
        """Tokens of prompts that were sent from here and are not computed yet."""
        expected = self._expected
        if expected:
            now = self._clock()
            while expected and expected[0].due <= now:
                self.computed(expected.popleft())
        return max(0.0, self._ahead)

    @property
    def belief(self) -> float:
        """0 to 1: how much what is known to its disadvantage counts."""
        return float(0.5 ** ((self._clock() - self.asked) / HALF_LIFE)) if not self.running else 1.0

    def sent(self, tokens: float, seconds: float | None = None) -> Prompt:
        """A prompt with so many tokens to be computed; ``seconds``: expected until then, where it will not be seen."""
        self.asked = self._clock()
        self.running += 1
        self._ahead += tokens
        prompt = Prompt(tokens)
        if seconds is not None:
            # In the order in which they were sent.
            last = self._expected[-1].due if self._expected else 0.0
            prompt.due = max(self.asked + seconds, last)
            self._expected.append(prompt)
        return prompt

    def computed(self, prompt: Prompt) -> None:
        """The first token of its answer has come, or should have, or it ended without: it is before nobody any more."""
        self._ahead -= prompt.tokens
        prompt.tokens = 0.0

    def learn(self, tokens: float, seconds: float) -> None:
        """It took ``seconds`` to the first token, with so many tokens to be computed until then."""
        self._measured += 1
        weight = max(SHARE, 1 / self._measured)
        self._tokens += (tokens - self._tokens) * weight
        self._seconds += (seconds - self._seconds) * weight
        self._square += (tokens * tokens - self._square) * weight
        self._product += (tokens * seconds - self._product) * weight

    def judge(self, told: float, waited: float) -> None:
        """By what it said of itself a request was to wait ``told`` seconds, and waited so long beyond what else was
        expected."""
        if told > 0:
            self.trust += (min(1.0, max(0.0, waited / told)) - self.trust) * JUDGED

    def ended(self, seconds: float) -> None:
        """A request, after so many seconds."""
        self.running -= 1
        self._lasting = seconds if not self._lasting else self._lasting + (seconds - self._lasting) * SHARE

    def fell(self, load: EngineLoad) -> bool:
        """Whether its counters fell, which they do when it is started again. That of prompts may be a rounded one."""
        prompts, cached = self._counted
        self._counted = load.prompts, load.cached
        return load.cached < cached or load.prompts < prompts / 2

    def restarted(self) -> None:
        """Nothing of what was learned need hold any more, nor does it have anything before it."""
        self._measured = 0
        self._tokens = self._seconds = self._square = self._product = 0.0

    @property
    def speed(self) -> float | None:
        """Seconds a token; None where nothing was measured."""
        return max(FASTEST, self._product / self._square) if self._square > 0 else None

    def base(self, speed: float) -> float:
        """Seconds that are no matter of tokens."""
        return max(0.0, self._seconds - speed * self._tokens)

    def waiting(self, told: EngineLoad | None, usual: float) -> float:
        """Tokens of others' prompts that it says are before the next one; ``usual``: of one."""
        if told is None or not told.waiting:
            return 0.0
        others = told.running + told.waiting - self.running
        return max(0, min(told.waiting, others, MOST_WAITING)) * usual

    def for_memory(self, told: EngineLoad | None, tokens: float) -> float:
        """Seconds until KV memory for ``tokens`` is free. In the time that a request lasts all of it changes hands
        (Little's law), and a part of it in that part of the time."""
        if told is None or not told.kv_usage:
            return 0.0
        wanted = tokens / told.kv_tokens if told.kv_tokens else 0.0
        return self._lasting * min(1.0, max(0.0, told.kv_usage + wanted - KV_FULL))
