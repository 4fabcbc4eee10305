"""What guards that only flag have found: told in the log, and sampled with masked excerpts for people to review."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Protocol

from gateway.findings import Finding
from gateway.guards.scanners.covering import Private
from gateway.guards.scanners.scanner import Origin
from gateway.guards.scans.inspection import Inspection
from gateway.guards.texts.edits import Edit, applied, merged, shown
from gateway.observe.events import log_event
from gateway.observe.metrics import Metrics
from gateway.observe.tracing import trace_id_of
from gateway.policy.schema import PiiGuard, ReviewSettings, SecretsGuard
from gateway.types import Call, Json

log = logging.getLogger(__name__)

MOST_OF_ONE = 5
"""Findings of one guard in one request, or answer, that are written."""
LONGEST = 400
"""Characters of a finding that are shown."""
_MARGIN = 160
"""Characters beyond an excerpt that are looked at, so that what its edge cuts is still recognized."""


class Lines(Protocol):
    def add(self, line: Mapping[str, Json]) -> bool: ...


class Review:
    """One worker's. ``config`` says what is sampled; ``lines`` takes it. Without them only the log is told."""

    def __init__(
        self, metrics: Metrics, config: ReviewSettings | None = None, lines: Lines | None = None
    ) -> None:
        self._metrics = metrics
        self._config = config or ReviewSettings()
        self._lines = lines
        self._excerpts = Excerpts(self._config.context)
        self._minute = 0
        self._written: dict[str, int] = {}
        """By guard, in this minute."""

    def tell(self, call: Call, inspection: Inspection) -> None:
        """The log, once all texts were scanned; never with any text."""
        facts = inspection.facts()
        if labels := facts["labels"]:
            name = inspection.guard.name
            log_event(
                log,
                logging.INFO,
                "guard_finding",
                f"{call.request_id}: guard '{name}' flagged {facts['direction']} for {', '.join(labels)}",
                *(
                    call.request_id,
                    trace_id_of(call),
                    call.principal.tenant,
                    call.principal.key_id,
                    call.model,
                ),
                *(name, facts["direction"], ",".join(labels), sum(labels.values())),
                *(facts["check"], facts["score"]),
            )

    def sample(
        self,
        call: Call,
        inspection: Inspection,
        texts: Sequence[tuple[str, Origin]],
        findings: Sequence[Sequence[Finding]],
    ) -> None:
        """``findings`` has those of each of ``texts``."""
        if self._lines is None or not any(findings):
            return
        guard = inspection.guard
        if not self._config.is_sampled(_fraction(call.request_id)) or not self._has_room(guard.name):
            self._count(guard.name, "skipped")
            return
        facts = inspection.facts()
        who = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": call.request_id,
            "tenant": call.principal.tenant,
            "key_id": call.principal.key_id,
            "model": call.model,
            "guard": guard.name,
            "direction": facts["direction"],
            "check": facts["check"],
        }
        for (text, origin), finding in list(_pairs(texts, findings))[:MOST_OF_ONE]:
            line = {
                **who,
                "origin": origin,
                "label": finding.label,
                "score": round(finding.score, 3),
                "start": finding.start,
                "end": finding.end,
                "excerpt": self._excerpts.of(
                    text, finding, hides=isinstance(guard.config, PiiGuard | SecretsGuard)
                ),
            }
            self._count(guard.name, "written" if self._lines.add(line) else "lost")

    def _has_room(self, guard: str) -> bool:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._written.clear()
        written = self._written[guard] = self._written.get(guard, 0) + 1
        return written <= self._config.per_minute

    def _count(self, guard: str, outcome: str) -> None:
        self._metrics.guard_reviews.labels(guard, outcome).inc()


class Excerpts:
    """What stands around a finding, with credentials and personal data masked as far as patterns find them."""

    def __init__(self, context: int) -> None:
        self._context = context
        self._private = Private()

    def of(self, text: str, finding: Finding, *, hides: bool) -> str:
        """With ``hides`` the finding itself is masked too."""
        end = min(finding.end, finding.start + LONGEST)
        first, last = max(finding.start - self._context, 0), min(end + self._context, len(text))
        begin = max(first - _MARGIN, 0)
        wide = text[begin : last + _MARGIN]
        found = self._private.find(wide)
        if hides:
            found.append(Finding(finding.label, finding.start - begin, finding.end - begin))
        first, last = first - begin, last - begin
        edits = merged(
            Edit(max(one.start, first) - first, min(one.end, last) - first, one.label, one.end - one.start)
            for one in found
            if one.start < last and first < one.end
        )
        excerpt = applied(wide[first:last], edits, [f"[{shown(edit.label)}]" for edit in edits])
        return f"{'…' if begin + first else ''}{excerpt}{'…' if begin + last < len(text) else ''}"


def _pairs(
    texts: Sequence[tuple[str, Origin]], findings: Sequence[Sequence[Finding]]
) -> Iterator[tuple[tuple[str, Origin], Finding]]:
    for text, found in zip(texts, findings, strict=True):
        for finding in found:
            yield text, finding


def _fraction(request_id: str) -> float:
    """0 to 1, the same for the same request: all that was found in it is sampled, or nothing."""
    digest = blake2b(request_id.encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
