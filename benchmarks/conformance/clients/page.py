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
    without = "; ".join(f"{', '.join(kinds)} [{number}]" for number, kinds in missed.items())
    return f"no: {without}" if sum(map(len, missed.values())) == len(tried) else f"yes, not {without}"


Cells = Mapping[tuple[str, str, str], str]
"""By client, feature and kind of backend: why not; empty for what works."""


def written(page: str) -> Cells:
    """What the table in ``page`` says."""
    body = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    reasons = dict(line.split(". ", 1) for line in body if line[:1].isdigit())
    (_, *clients), _, *rows = (line.strip("|").split("|") for line in body if line.startswith("|"))
    titles = {title: feature for feature, title in FEATURES.items()}
    found: dict[tuple[str, str, str], str] = {}
    for title, *cells in rows:
        for client, told in zip(clients, cells, strict=True):
            if told.strip() == "–":
                continue
            works = told.strip().partition(" not ")[0].startswith("yes")
            missed = (
                {}
                if told.strip() == "yes"
                else _missed(told.partition("not " if works else "no: ")[2], reasons)
            )
            for kind in KINDS:
                found[client.strip(), titles[title.strip()], kind] = missed.get(kind, "")
    return found


def _missed(told: str, reasons: Mapping[str, str]) -> dict[str, str]:
    missed: dict[str, str] = {}
    for some in told.strip().split("; "):
        kinds, _, number = some.rstrip("]").partition(" [")
        missed |= dict.fromkeys(kinds.split(", "), reasons[number])
    return missed


def put(text: str, page: Path = PAGE) -> None:
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def differences(reports: Iterable[Report], page: str) -> list[str]:
    """Where what was found is not what ``page`` says, of the kinds that were tried."""
    known = written(page)
    found = {
        (report.client, one.feature, one.kind): "" if one.works else _short(one.reason)
        for report in reports
        for one in report.tried
    }
    return [
        f"{', '.join(key)}: {reason or 'works'!r}, and the page says {known.get(key, 'nothing') or 'works'!r}"
        for key, reason in found.items()
        if known.get(key) != reason
    ]


def _short(reason: str) -> str:
    """One reason for one refusal, however a client puts it: from where the gateway's own words begin."""
    words = reason
    for mark in (
        '"message":"',
        "'message': \"",
        "'message': '",
        "Error code: 400 - ",
        "Error: 400 ",
        "Error: ",
    ):
        if mark in words:
            words = words.partition(mark)[2]
            break
    for end in ("\", 'type'", "', 'type'", "\", 'status'", "', 'status'"):
        words = words.partition(end)[0]
    words = words.replace("\\'", "'").replace("|", "/").partition(". ")[0].rstrip(".")
    words = re.sub(
        r"The model '[^']*' is served by backend '[^']*'(?: of kind '[^']*')?,", "The model's backend,", words
    )
    words = words.replace("backend, which has", "backend has").replace(
        "backend, whose provider has", "backend has"
    )
    return re.sub(r"(?:\[\d+\](?:\.content)?)+", "[…]", words)
