"""The table of clients and features, as it stands in ``docs/clients.md``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.conformance.clients.features import FEATURES
from benchmarks.conformance.clients.tried import KINDS, Report, Tried

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
BEGIN = "<!-- clients: written by `python -m benchmarks.conformance.clients table` -->"
END = "<!-- /clients -->"


class Notes:
    """Reasons, by their numbers below the table."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        return self._numbers.setdefault(_short(reason), len(self._numbers) + 1)

    def lines(self) -> list[str]:
        return [f"{number}. {reason}" for reason, number in self._numbers.items()]


def table(reports: Sequence[Report]) -> str:
    """A row for each feature, a column for each client, the reasons and versions below."""
    notes = Notes()
    lines = [
        "| | " + " | ".join(report.client for report in reports) + " |",
        "|---|" + "---|" * len(reports),
    ]
    for feature, title in FEATURES.items():
        cells = [cell([one for one in report.tried if one.feature == feature], notes) for report in reports]
        if any(cells):
            lines.append(f"| {title} | " + " | ".join(one or "–" for one in cells) + " |")
    versions = (
        f"{report.client}: {', '.join(f'`{name}` {version}' for name, version in report.versions.items())}"
        for report in reports
    )
    return "\n".join([*lines, "", *notes.lines(), "", *(f"- {line}" for line in versions)])


def cell(tried: Sequence[Tried], notes: Notes) -> str:
    """``yes`` for all kinds of backends, or which of them do not, and why; empty for what a client does not have."""
    if not tried:
        return ""
    missed: dict[int, list[str]] = {}
    for one in sorted(tried, key=lambda one: KINDS.index(one.kind)):
        if not one.works:
            missed.setdefault(notes.number(one.reason), []).append(one.kind)
    if not missed:
        return "yes"
    kinds = [kind for some in missed.values() for kind in some]
    if len(kinds) == len(tried):
        return "no" + "".join(f" [{number}]" for number in missed)
    without = ", ".join(f"{', '.join(some)} [{number}]" for number, some in missed.items())
    return f"yes, not {without}"


def written(page: str) -> Mapping[str, Mapping[str, str]]:
    """The cells of the table in ``page``, by client and feature, each reason in its note's place."""
    body = page.partition(BEGIN)[2].partition(END)[0].strip()
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("|")]
    reasons = dict(line.split(". ", 1) for line in body.splitlines() if line[:1].isdigit() and ". " in line)
    titles = {title: feature for feature, title in FEATURES.items()}
    clients = rows[0] if rows else []
    found: dict[str, dict[str, str]] = {client: {} for client in clients}
    for title, *cells in rows[2:]:
        for client, told in zip(clients, cells, strict=True):
            found[client][titles[title]] = _spelled(told, reasons)
    return found


def put(text: str, page: Path = PAGE) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def differences(reports: Iterable[Report], page: str) -> list[str]:
    """Where what was found is not what ``page`` says."""
    known = written(page)
    found = written(f"{BEGIN}\n\n{table(list(reports))}\n\n{END}")
    return [
        f"{client}: {feature}: {told!r}, and the page says {known.get(client, {}).get(feature)!r}"
        for client, cells in found.items()
        for feature, told in cells.items()
        if known.get(client, {}).get(feature) != told
    ]


def _spelled(told: str, reasons: Mapping[str, str]) -> str:
    for number, reason in reasons.items():
        told = told.replace(f"[{number}]", f"({reason})")
    return told


def _short(reason: str) -> str:
    """One reason for one refusal, however a client puts it: from where the gateway's own words begin."""
    words = reason
    for mark in ("'message': \"", "'message': '", "Error code: 400 - ", "Error: 400 ", "Error: "):
        if mark in words:
            words = words.partition(mark)[2]
            break
    for end in ("\", 'type'", "', 'type'"):
        words = words.partition(end)[0]
    words = words.replace("\\'", "'").replace("|", "/").partition(". ")[0].rstrip(".")
    return re.sub(r"(?:\[\d+\](?:\.content)?)+", "[…]", words)
