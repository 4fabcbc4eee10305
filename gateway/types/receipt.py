"""What happened to one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.types.json_value import Json

NOT_STORED = "not_stored"
"""Noted, without facts, for a request whose content its caller wants stored nowhere."""


class Notes(Protocol):
    """What a request's end adds to its receipt."""

    def notes(self) -> Mapping[str, Mapping[str, Json]]: ...


@dataclass(slots=True)
class Receipt:
    """What happened to one request, noted by the stages; ``/v1/requests/{id}`` serves it.

    ``created`` is Unix time; all other times are seconds since the request arrived.
    """

    request_id: str
    created: float
    noted: dict[str, dict[str, Json]] = field(default_factory=dict)
    """By stage, without what its end adds until somebody reads that."""
    _end: Notes | None = None

    def note(self, stage: str, **facts: Json) -> None:
        """Add what ``stage`` decided and why; later facts join the earlier ones."""
        self.noted.setdefault(stage, {}).update(facts)

    def close(self, end: Notes) -> None:
        """The request has ended. What that adds is rendered when the notes are read: mostly in a writer's thread."""
        if self._end is not None:
            self._render(self._end)
        self._end = end

    @property
    def notes(self) -> dict[str, dict[str, Json]]:
        """All of them, by stage."""
        if (end := self._end) is not None:
            self._render(end)
            # Only now: another thread that reads them meanwhile renders the same facts, and misses none.
            self._end = None
        return self.noted

    def _render(self, end: Notes) -> None:
        for stage, facts in end.notes().items():
            self.noted.setdefault(stage, {}).update(facts)

    @property
    def attempts(self) -> int:
        """How often a backend was asked, failed tries included; one that our own queue refused was not asked."""
        return self.attempts_in(self.noted)

    @staticmethod
    def attempts_in(noted: Mapping[str, Mapping[str, Json]]) -> int:
        attempts = noted.get("fallback", {}).get("attempts", ())
        return sum(attempt.get("admitted", True) for attempt in attempts)
