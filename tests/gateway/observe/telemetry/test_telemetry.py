"""The end of telemetry, whatever its receiver does."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gateway.observe.telemetry import telemetry as module
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.policy import schema

pytestmark = pytest.mark.anyio


class Silent:
    """A receiver that takes a connection and never answers."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()

    def export_spans(self, spans: list[Any]) -> bool:
        return True

    def export_metrics(self, metrics: Any, since: int) -> bool:
        self.asked.set()
        self.over.wait(60)
        return False

    def close(self) -> None:
        pass


async def test_a_receiver_that_says_nothing_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_CLOSE", 0.1)
    monkeypatch.setattr(module, "metrics", lambda *given: ["something"])
    exporter = Silent()
    telemetry = Telemetry(schema.Telemetry(endpoint="http://127.0.0.1:9"), lambda _: exporter)
    began = time.monotonic()
    await telemetry.aclose()
    assert exporter.asked.is_set() and time.monotonic() - began < 30
    exporter.over.set()
