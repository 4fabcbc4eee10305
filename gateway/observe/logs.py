"""Logging, set up once per process: plain lines, or with TOLLGATE_LOG_FORMAT=json one JSON object a line."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from gateway.observe.batch_handler import BatchHandler
from gateway.observe.events import FACTS
from gateway.settings import LogFormat, LogLevel

log = logging.getLogger(__name__)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", FACTS}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_TALKATIVE = ("asyncio", "httpx", "httpcore", "uvicorn")
_SILENT = ("opentelemetry",)
"""Says for every batch what ``gateway.observe.telemetry`` says once a minute."""


def set_up(level: LogLevel, form: LogFormat, stream: TextIO | None = None, *, batches: bool = False) -> None:
    """Send every record, Python's warnings included, to ``stream`` (standard error), in place of what was set up.

    In ``batches`` it is written by a thread, for a process that serves requests; else at once.
    """
    into = stream or sys.stderr
    handler: logging.Handler = BatchHandler(into) if batches else logging.StreamHandler(into)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Our formats do not show these, and finding them costs as much as the rest of a record (logging, "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.captureWarnings(True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def take_uncaught() -> None:
    """Have exceptions that nobody catches logged, which Python would print in a form of its own."""
    sys.excepthook = lambda kind, error, trace: _log_uncaught("this process ends by", error)
    threading.excepthook = lambda found: _log_uncaught(
        f"thread '{found.thread.name if found.thread else ''}' ended by", found.exc_value
    )
    sys.unraisablehook = lambda found: _log_uncaught(
        found.err_msg or f"in {found.object!r}, ignored", found.exc_value
    )


def _log_uncaught(what: str, error: BaseException | None) -> None:
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        log.critical("%s: %s", what, type(error).__name__, exc_info=error)


def escaped(text: str) -> str:
    """With control sequences of messages of errors or upstreams escaped, as a terminal would obey them."""
    return text if text.isprintable() else _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class TextFormatter(logging.Formatter):
    """Half as slow as ``logging.Formatter`` with a format, which parses it for each record."""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._time = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if int(record.created) != self._second:  # hundreds of lines may share one
            self._second = int(record.created)
            self._time = time.strftime("%H:%M:%S", time.localtime(self._second))
        return self._time

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self.formatTime(record)} {record.levelname:<7} {record.name}: {record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return escaped(text).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message"}``, then the record's fields, then ``"exception"``.

    The fields are an event's (``gateway.observe.events``), or the record's ``extra``.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts = getattr(record, FACTS, None)
        if facts is not None:
            fields |= facts
        else:
            fields |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str).decode()
