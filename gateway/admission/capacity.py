"""How many answers, and how many tokens, a backend may have in flight at once, and how many it has."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.shared_slots import SharedSlots


class Capacity:
    """One backend's slots and tokens. None is no limit.

    ``max_tokens`` is this worker's share, and so are ``slots`` where the workers do not share them.
    """

    def __init__(self, make_shared: Callable[[], SharedSlots] | None = None) -> None:
        """``make_shared`` makes the slots that this worker shares with others."""
        self._slots: int | None = None
        self.limited = False
        """Whether there is any limit."""
        self._make_shared = make_shared
        self.shared: SharedSlots | None = None
        self.max_tokens: int | None = None
        self.in_flight = 0
        """Answers, which is slots in use."""
        self.tokens_in_flight = 0
        self.reclaimable_slots = 0
        """Of those in flight: what is given back where others come to wait."""
        self.reclaimable_tokens = 0

    @property
    def slots(self) -> int | None:
        """How many this worker may use now."""
        return self._slots if self.shared is None else self.shared.available

    @property
    def utilization(self) -> float:
        """0 to 1: the fuller of slots and tokens, without what can be asked back."""
        slots, in_flight = self.slots, self.in_flight - self.reclaimable_slots
        of_slots = 0.0 if slots is None else in_flight / slots if slots else 1.0
        in_tokens = self.tokens_in_flight - self.reclaimable_tokens
        of_tokens = in_tokens / self.max_tokens if self.max_tokens is not None else 0.0
        return min(1.0, max(of_slots, of_tokens))

    def share(self, tokens: int, answers: int = 1) -> float:
        """The share of the backend that a request takes; 0 where there is no limit."""
        slots = self._slots if self.shared is None else self.shared.available
        of_slots = answers / max(1, slots) if slots is not None else 0.0
        if self.max_tokens is not None:
            of_slots = max(of_slots, tokens / self.max_tokens)
        return min(1.0, of_slots)

    def fits(self, tokens: int, answers: int = 1, *, reclaiming: bool = False) -> bool:
        """Whether there is capacity; ``reclaiming``: once what can be asked back is. What is larger than the whole
        limit runs alone."""
        in_flight, in_tokens = self.in_flight, self.tokens_in_flight
        if reclaiming:
            in_flight, in_tokens = in_flight - self.reclaimable_slots, in_tokens - self.reclaimable_tokens
        if not in_flight and (self.shared is None or self.shared.idle):
            return True
        slots = self.slots
        if slots is not None and in_flight + answers > slots:
            return False
        return self.max_tokens is None or in_tokens + tokens <= self.max_tokens

    def fits_tier(self, tokens: int, terms: QueueTerms, answers: int, *, reclaiming: bool = False) -> bool:
        """As ``fits``, for a tier that may not use all of the backend."""
        return self.fits(tokens, answers, reclaiming=reclaiming) and (
            terms.max_utilization >= 1.0 or not self.in_flight or self.utilization < terms.max_utilization
        )

    def tokens_to_finish(self, tokens: int, max_utilization: float, answers: int) -> float:
        """Tokens that must finish before ``tokens`` more fit and less than ``max_utilization`` is in use."""
        if not self.in_flight:
            return 0.0
        missing = 0.0
        if (slots := self.slots) is not None:
            usable = max(answers, ceil(slots * max_utilization))
            too_many = min(self.in_flight, self.in_flight + answers - usable)
            missing = too_many * self.tokens_in_flight / self.in_flight
        if self.max_tokens is not None:
            too_much = self.tokens_in_flight - min(
                self.max_tokens - tokens, self.max_tokens * max_utilization
            )
            missing = max(missing, min(self.tokens_in_flight, too_much))
        return max(0.0, missing)

    def share_slots(self, in_all: int | None) -> bool:
        """Begin to share the slots, which are ``in_all``, with the other workers, or cease to. Whether they were shared
        before and are."""
        shared = self.shared
        if shared is None and in_all is not None and self._make_shared is not None:
            self.shared = self._make_shared()
            self.shared.limit = in_all
            self.shared.add(self.in_flight)
            return False
        if shared is not None and in_all is None:
            shared.close()
            self.shared = None
        elif shared is not None and in_all is not None:
            shared.limit = in_all
            return True
        return False
