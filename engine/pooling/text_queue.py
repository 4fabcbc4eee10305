"""Texts that wait for a batch: who is in the next one, and who is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.core.rate import Rate
from engine.errors import DeadlineUnreachable, QueueFull
from engine.pooling.messages import SubmitTexts


@dataclass(slots=True, eq=False)
class WaitingTexts:
    """A request of which not all texts are done."""

    message: SubmitTexts
    left: list[int] = field(init=False)
    """Its texts that are not done, the longest first: those of a batch are then about equally long."""
    tokens: int = field(init=False)
    """Of these."""
    begun: bool = False

    def __post_init__(self) -> None:
        self.tokens = sum(map(len, self.message.rows))
        self.left = sorted(range(len(self.message.rows)), key=lambda index: -len(self.message.rows[index]))


Picked = tuple[WaitingTexts, int]
"""A request, and which of its texts."""


class TextQueue:
    """Requests take turns, text by text, in the order of their arrival minus ``priority_ageing`` seconds for each point
    of priority: a request of a thousand texts does not hold up one of a single text."""

    def __init__(
        self, *, max_num_seqs: int, max_batched_tokens: int, max_waiting: int, priority_ageing: float
    ) -> None:
        """A batch has at most ``max_num_seqs`` texts and ``max_batched_tokens`` tokens, or one text. ``max_waiting``:
        requests, beside as many as may have a text in a batch."""
        self.max_batched_tokens = max_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._most = max_num_seqs + max_waiting
        self._ageing = priority_ageing
        self._requests: dict[int, WaitingTexts] = {}
        self._speed = Rate()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def running(self) -> int:
        return sum(request.begun for request in self._requests.values())

    def submit(self, message: SubmitTexts, now: float) -> None:
        """Raises ``QueueFull`` or ``DeadlineUnreachable``."""
        if len(self._requests) >= self._most:
            raise QueueFull(len(self._requests) - self.running)
        request = WaitingTexts(message)
        if message.deadline is not None:
            needed = self._seconds(request)
            if needed > message.deadline - now:
                raise DeadlineUnreachable(needed, message.deadline - now)
        self._requests[message.request_id] = request

    def remove(self, request_id: int) -> None:
        self._requests.pop(request_id, None)

    def expired(self, now: float) -> list[tuple[int, float]]:
        """Removes the requests whose deadline has passed: (request id, seconds that it would still take)."""
        late = [
            request
            for request in self._requests.values()
            if request.message.deadline is not None and request.message.deadline <= now
        ]
        for request in late:
            del self._requests[request.message.request_id]
        return [(request.message.request_id, self._seconds(request)) for request in late]

    def batch(self) -> list[Picked]:
        """The texts to be computed next, in the order of their lengths. They stay until ``done``."""
        picked: list[Picked] = []
        tokens = 0
        for request, index in self._turns():
            tokens += len(request.message.rows[index])
            if picked and tokens > self.max_batched_tokens:
                break
            picked.append((request, index))
            if len(picked) == self._max_num_seqs:
                break
        return sorted(picked, key=lambda one: len(one[0].message.rows[one[1]]))

    def done(self, batch: list[Picked], seconds: float) -> list[WaitingTexts]:
        """``batch`` took ``seconds``. Returns the requests that it had the first text of."""
        self._speed.add(sum(len(request.message.rows[index]) for request, index in batch), seconds)
        first = {request: None for request, _ in batch if not request.begun}
        for request, index in batch:
            request.begun = True
            request.left.remove(index)
            request.tokens -= len(request.message.rows[index])
            if not request.left:
                self.remove(request.message.request_id)
        return list(first)

    def _turns(self) -> Iterator[Picked]:
        """One text of each request, then another of each, and so on."""
        order = sorted(self._requests.values(), key=self._rank)
        turn = 0
        while order:
            for request in order:
                yield request, request.left[turn]
            turn += 1
            order = [request for request in order if len(request.left) > turn]

    def _rank(self, request: WaitingTexts) -> float:
        return request.message.submitted - self._ageing * request.message.priority

    def _seconds(self, request: WaitingTexts) -> float:
        """Until it is done, as far as is known: with those before it, it takes turns."""
        if not self._speed.value:
            return 0.0
        own, rank = request.tokens, self._rank(request)
        before = (other for other in self._requests.values() if other is not request)
        ahead = sum(min(own, other.tokens) for other in before if self._rank(other) <= rank)
        return (own + ahead) / self._speed.value
