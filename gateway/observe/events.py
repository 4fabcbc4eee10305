"""Structured log events: names and keys, as docs/operations.md lists them.

``log_event`` logs one. As text a record is its message; as JSON it has all of its event's keys, null where there is no
value. No value is a text by a caller or a model, an error's message or an API key: only codes, names from the policy,
and numbers.
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
        *("backend", "status", "error", "prompt_tokens", "completion_tokens", "unit", "units"),
        *("cost_usd", "seconds"),
    ),
    "upstream_error": (
        *_WHO,
        *("backend", "upstream_model", "upstream_status", "error", "attempt", "seconds"),
    ),
    "failover": (*_WHO, "backend", "error", "to_model", "to_backend"),
    "guard_finding": (*_WHO, "guard", "direction", "labels", "findings", "check", "score"),
    "breaker_opened": ("backend", "upstream_model", "tenant", "key_id", "failures", "cooldown"),
    "breaker_closed": ("backend", "upstream_model", "tenant", "key_id"),
    "credentials_refused": ("backend", "upstream_model", "error"),
    "credentials_accepted": ("backend",),
}
"""Each event's keys besides ``event``, in order."""

Fact = str | int | float | None


class EventRecord(logging.LogRecord):
    """A record of one event. ``LogRecord``'s own constructor takes 4 µs, as much as the rest of logging, to find the
    calling line and thread, which our formats do not show.
    """

    def __init__(self, name: str, level: int, event: str, message: str, values: tuple[Fact, ...]) -> None:
        self.__dict__.update(BLANK[level])
        self.name = name
        self.msg = message  # without arguments it is not a format
        self.created = now = time.time()
        self.msecs = now % 1 * 1000
        self.event = event
        self.values = values

    @property
    def facts(self) -> dict[str, Fact]:
        """Built by the JSON formatter; as text a record is its message."""
        return {"event": self.event, **dict(zip(KEYS[self.event], self.values, strict=True))}


BLANK: Mapping[int, Mapping[str, object]] = {
    level: vars(logging.makeLogRecord({"levelno": level, "levelname": logging.getLevelName(level)}))
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
}
"""What a record of a level has before anything is known of it."""


def log_event(log: logging.Logger, level: int, event: str, message: str, *values: Fact) -> None:
    """Log one event; ``values`` are those of its keys, in order. Almost free below the log's level."""
    if log.isEnabledFor(level):
        log.handle(EventRecord(log.name, level, event, message, values))
