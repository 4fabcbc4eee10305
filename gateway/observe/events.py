"""What the log tells in fields: each event, its name and its keys, as docs/operations.md lists them.

``tell`` writes one. As text a record is its message; as JSON the keys stand beside it, all of them each time, null
where there is nothing to say. No value is a caller's or a model's words, an error's message or a key: codes, names out
of the policy and figures only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

FACTS = "facts"
"""The attribute of a log record that holds an event's fields."""

_WHO = ("request_id", "trace_id", "tenant", "key_id", "model")

KEYS: Mapping[str, tuple[str, ...]] = {
    "request": (
        *_WHO,
        *("backend", "status", "error", "prompt_tokens", "completion_tokens", "cost_usd", "seconds"),
    ),
    "upstream_error": (
        *_WHO,
        *("backend", "upstream_model", "upstream_status", "error", "attempt", "seconds"),
    ),
    "failover": (*_WHO, "backend", "error", "to_model", "to_backend"),
    "breaker_opened": ("backend", "upstream_model", "tenant", "key_id", "failures", "cooldown"),
    "breaker_closed": ("backend", "upstream_model", "tenant", "key_id"),
    "credentials_refused": ("backend", "upstream_model", "error"),
    "credentials_accepted": ("backend",),
}
"""Each event's keys beside ``event``, in their order."""

Fact = str | int | float | None


class Event(logging.LogRecord):
    """A record of one event. ``LogRecord``'s own constructor takes 4 µs, as much as all else that logging does, to find
    out where in the program it was called and by which thread, which no format of ours shows.
    """

    def __init__(self, name: str, level: int, event: str, message: str, values: tuple[Fact, ...]) -> None:
        self.__dict__.update(_UNTOLD)
        self.name = name
        self.levelno, self.levelname = level, logging.getLevelName(level)
        self.msg = message  # without arguments nothing in it is taken for a format
        self.created = now = time.time()
        self.msecs = now % 1 * 1000
        self.event = event
        self.values = values

    @property
    def facts(self) -> dict[str, Fact]:
        """Put together by whoever writes them: as text a record is its message."""
        return {"event": self.event, **dict(zip(KEYS[self.event], self.values, strict=True))}


_UNTOLD = vars(logging.makeLogRecord({}))


def tell(log: logging.Logger, level: int, event: str, message: str, *values: Fact) -> None:
    """One event; ``values`` are those of its keys. The call costs next to nothing below the log's level."""
    if log.isEnabledFor(level):
        log.handle(Event(log.name, level, event, message, values))
