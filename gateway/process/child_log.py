"""What children of ``tollgate serve`` write, as lines of its own log.

Workers, the sidecar and the bundled engine log in our format. Whatever else comes out of them (the traceback of one
that dies before it logs, a library's print, a progress bar) is made a record, at any log level: it may be why one died.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import suppress
from typing import TextIO

from gateway.observe.logs import JsonFormatter, TextFormatter, escaped
from gateway.settings import LogFormat

OUTPUT = "output"
"""The logger's name of what a child did not log itself, in plain lines."""
_RECORD = re.compile(r"\d\d:\d\d:\d\d (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) +\S+: ")
_FURTHER = "    "
"""Begins the further lines of a record."""
_KEYS = frozenset(["time", "level", "logger", "message"])


class ChildLog:
    def __init__(self, form: LogFormat, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._json = form == "json"
        self._formatter = JsonFormatter() if self._json else TextFormatter()
        self._in_record: set[str] = set()
        """Children whose last line was one of a record."""

    def write(self, child: str, line: str) -> None:
        if self._json:
            text = line if _is_object(line) else self._record(child, line)
        elif self._goes_on(child, line):
            text = f"{child} | {escaped(line)}"
        else:
            text = f"{child} | {self._record(OUTPUT, line)}"
        # A closed terminal is no reason to stop serving. In one piece: threads log beside this.
        with suppress(OSError):
            self._stream.write(text + "\n")
            self._stream.flush()

    def _goes_on(self, child: str, line: str) -> bool:
        """Whether it is a record's first or further line."""
        if _RECORD.match(line):
            self._in_record.add(child)
        elif not line.startswith(_FURTHER):
            self._in_record.discard(child)
        return child in self._in_record

    def _record(self, logger: str, line: str) -> str:
        return self._formatter.format(
            logging.makeLogRecord({"name": logger, "levelno": logging.INFO, "levelname": "INFO", "msg": line})
        )


def _is_object(line: str) -> bool:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() >= _KEYS
