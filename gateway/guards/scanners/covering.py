"""Texts without the personal data and credentials that patterns find, for readers who need not see them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from gateway.findings import Finding
from gateway.guards.scanners.pii import Pii, apart
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
        self._begins: list[int] = []
        self._spans: list[tuple[int, int, int]] = []
        """Start and end in the original, and length in ``text``, of what was replaced."""
        done = size = 0
        for one in apart(findings, {}):
            label = f"[{one.label}]"
            parts += (original[done : one.start], label)
            size += one.start - done
            self._begins.append(size)
            self._spans.append((one.start, one.end, len(label)))
            size += len(label)
            done = one.end
        self.text = "".join((*parts, original[done:]))

    def in_original(self, findings: Sequence[Finding]) -> list[Finding]:
        """What was found in ``text``; what touches a label spans all that the label stands for."""
        if not self._begins:
            return list(findings)
        return [one.moved(self._place(one.start)[0], self._place(one.end - 1)[1]) for one in findings]

    def _place(self, at: int) -> tuple[int, int]:
        number = bisect_right(self._begins, at) - 1
        if number < 0:
            return at, at + 1
        start, end, length = self._spans[number]
        behind = at - self._begins[number] - length
        return (start, end) if behind < 0 else (end + behind, end + behind + 1)
