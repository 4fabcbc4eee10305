from __future__ import annotations

from gateway.findings import Finding
from gateway.guards.scanners.length import Length
from gateway.guards.scanners.scanner import Verdict
from gateway.policy.schema.guards import LengthGuard


def test_what_is_beyond_the_limit() -> None:
    length = Length(LengthGuard(kind="length", max_characters=10))
    assert length.exceeds(10) is None
    assert length.exceeds(13) == Finding("length", 10, 13)


def test_it_looks_at_no_text() -> None:
    length = Length(LengthGuard(kind="length", max_characters=1))
    assert length.quick("long enough", "user") == Verdict()
    assert not length.origins
