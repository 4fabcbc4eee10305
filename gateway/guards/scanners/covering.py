"""Texts without the personal data and credentials that patterns find, for readers who need not see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.findings import Finding
from gateway.guards.scanners.pii import Pii, apart
from gateway.guards.scanners.replaced_spans import ReplacedSpans
from gateway.guards.scanners.secrets import Secrets
from gateway.pii.patterns import PATTERNS
from gateway.policy.schema import PiiGuard, SecretsGuard


class Private:
    """Finds what is nobody else's business: every entity with a pattern, and all credentials."""

    def __init__(self) -> None:
        self._scanners = (
            Pii(PiiGuard(kind="pii", entities=tuple(PATTERNS), checks=("fast",)), None),
            Secrets(SecretsGuard(kind="secrets")),
        )

    def find(self, text: str) -> list[Finding]:
        """Those of both may overlap."""
        return [
            finding
            for scanner in self._scanners
            if (verdict := scanner.quick(text, "user")) is not None
            for finding in verdict.findings
        ]


class Covered:
    """``original`` with a label in place of each finding, and where its characters stand in the original."""

    def __init__(self, original: str, findings: Iterable[Finding]) -> None:
        parts: list[str] = []
        self._replaced = ReplacedSpans()
        done = size = 0
        for one in apart(findings, {}):
            label = f"[{one.label}]"
            parts += (original[done : one.start], label)
            size += one.start - done
            self._replaced.add(size, one.start, one.end, len(label))
            size += len(label)
            done = one.end
        self.text = "".join((*parts, original[done:]))

    def in_original(self, findings: Sequence[Finding]) -> list[Finding]:
        """What was found in ``text``; what touches a label spans all that the label stands for."""
        if not self._replaced:
            return list(findings)
        place = self._replaced.place
        return [one.moved(place(one.start)[0], place(one.end - 1)[1]) for one in findings]
