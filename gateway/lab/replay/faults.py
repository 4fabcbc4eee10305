"""Outages that are put into a replay: what would have become of the traffic, had this backend been away?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.lab.replay.errors import ReplayError
from gateway.policy.schema import parse_duration

EXAMPLE = "--outage openai=10m+5m, or openai=10m+5m:503"
_FORM = re.compile(r"([^=\s]+)=([0-9.]+[a-z]+)\+([0-9.]+[a-z]+)(?::([45][0-9]{2}))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """A backend is out from ``begin`` to ``end`` (Unix time): unreachable, or with this status."""

    begin: float
    end: float
    status: int | None = None


def parse_faults(texts: Sequence[str], zero: float) -> dict[str, list[Fault]]:
    """By backend; ``zero`` is when the first request arrives, from which they count. Raises ``ReplayError``."""
    found: dict[str, list[Fault]] = {}
    for text in texts:
        form = _FORM.fullmatch(text)
        try:
            if form is None:
                raise ValueError(text)
            begin = zero + parse_duration(form[2])
            fault = Fault(begin, begin + parse_duration(form[3]), int(form[4]) if form[4] else None)
        except ValueError:
            raise ReplayError(
                f"--outage '{text}' should be a backend, when its outage begins and how long it lasts: {EXAMPLE}"
            ) from None
        found.setdefault(form[1], []).append(fault)
    return found
