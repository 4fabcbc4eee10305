"""The log of the engine's processes, in the format of the gateway that may have started them: plain lines, or with
TOLLGATE_LOG_FORMAT=json one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime


def set_up(level: str) -> None:
    """Send every record, Python's warnings included, to standard error."""
    as_json = os.environ.get("TOLLGATE_LOG_FORMAT", "").lower() == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).strip().replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message"}``, then ``"exception"``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
