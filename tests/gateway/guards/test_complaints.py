from __future__ import annotations

import logging

import pytest

from gateway.guards.guards import EVERY, Complaints


def test_a_guard_that_is_away_has_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    complaints, other = Complaints("shield", lambda: now), Complaints("pii", lambda: now)
    with caplog.at_level(logging.WARNING):
        for second in range(3 * int(EVERY)):
            now = 100.0 + second
            for _ in range(5):
                complaints.tell("its server cannot be reached: ConnectError")
        other.tell("busy")
    lines = [record.getMessage() for record in caplog.records]
    told = "guard 'shield' could not judge a text: its server cannot be reached: ConnectError"
    more = f"{told} (and 299 more since the last such line)"
    assert lines == [told, more, more, "guard 'pii' could not judge a text: busy"]
