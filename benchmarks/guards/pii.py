"""Personal data: what patterns find of labelled texts, Presidio beside them, and what each costs.

Matches are by span: of the same type, and overlapping. The threshold is the guard's own, 0.5.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.guards.report import Row
from gateway.findings import Finding
from gateway.guards.evaluation import Pii, Secrets, Topics, apart
from gateway.pii.patterns import PATTERNS
from gateway.pii.recognizers import NAMES
from gateway.policy.schema.guards import PiiGuard, SecretsGuard, TopicsGuard

FIGURES = Path(__file__).parents[2] / "gateway" / "sidecar" / "heads" / "entities.json"
PATTERN_TYPES = ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "US_SSN", "IP_ADDRESS", "URL")
THRESHOLD = 0.5
_PRESIDIO = {"DOMAIN_NAME": "URL", "GPE": "LOCATION", "STREET_ADDRESS": "LOCATION"}
"""The data's types, under Presidio's names."""
_CHARACTERS = 1000

Find = Callable[[str], Iterable[Finding]]


@dataclass(frozen=True)
class Labelled:
    text: str
    spans: tuple[tuple[str, str, int, int], ...]
    """The data's type, Presidio's, start, end."""


class Tally:
    """Hits, misses and false alarms by type."""

    def __init__(self, rows: Sequence[Labelled], find: Find, types: Sequence[str]) -> None:
        self.hits, self.exact, self.misses, self.false = (
            Counter[str](),
            Counter[str](),
            Counter[str](),
            Counter[str](),
        )
        order = {entity: place for place, entity in enumerate(types)}
        for row in rows:
            found = apart((it for it in find(row.text) if it.score >= THRESHOLD), order)
            for _, entity, start, end in row.spans:
                if entity not in order:
                    continue
                same = [it for it in found if it.label == entity and it.start < end and start < it.end]
                (self.hits if same else self.misses)[entity] += 1
                self.exact[entity] += any((it.start, it.end) == (start, end) for it in same)
            for it in found:
                if not any(
                    it.label == entity and it.start < end and start < it.end
                    for _, entity, start, end in row.spans
                ):
                    self.false[it.label] += 1

    def figures(self, *types: str) -> tuple[float, float, float, float]:
        """Precision, recall, F1, and the F1 of exact spans."""
        hits, exact, misses, false = (
            sum(count[entity] for entity in types)
            for count in (self.hits, self.exact, self.misses, self.false)
        )
        return (
            hits / (hits + false) if hits + false else 0.0,
            hits / (hits + misses) if hits + misses else 0.0,
            2 * hits / (2 * hits + misses + false) if hits else 0.0,
            2 * exact / (2 * hits + misses + false) if hits else 0.0,
        )


def rows(data: Path) -> list[Row]:
    """``data`` is the folder that holds ``pii.jsonl``."""
    labelled = list(_read(data / "pii.jsonl"))
    model = _presidio()
    return [
        *_by_patterns(labelled),
        *_false(data / "broad" / "prompts.jsonl"),
        *_by_tagger(),
        *_by_presidio(labelled, model),
        *_recall(labelled, model),
        *_speed(labelled, model),
    ]


def _read(path: Path) -> Iterable[Labelled]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Labelled(
                row["text"],
                tuple(
                    (it["type"], _PRESIDIO.get(it["type"], it["type"]), it["start"], it["end"])
                    for it in row["spans"]
                ),
            )


def _patterns(text: str, entities: Sequence[str] = PATTERN_TYPES) -> Iterable[Finding]:
    for entity in entities:
        yield from PATTERNS[entity].find(text)


def _by_patterns(labelled: Sequence[Labelled]) -> Iterable[Row]:
    tally = Tally(labelled, _patterns, PATTERN_TYPES)
    precision, recall, f1, exact = tally.figures(*PATTERN_TYPES)
    yield Row("PII patterns, F1 over all seven types", f1, "≥ 0.95", f1 >= 0.95)
    yield Row("precision", precision)
    yield Row("recall", recall)
    yield Row("F1 of exact spans", exact)
    for entity in PATTERN_TYPES:
        precision, recall, f1, _ = tally.figures(entity)
        count = tally.hits[entity] + tally.misses[entity]
        yield Row(
            f"F1 of {entity}", f1, note=f"precision {precision:.3f}, recall {recall:.3f}, {count} spans"
        )


def _false(path: Path) -> Iterable[Row]:
    """What the guard finds by default in texts that hold next to no personal data."""
    if not path.exists():
        yield Row("false finds in harmless texts", "no data")
        return
    guard = Pii(PiiGuard(kind="pii", checks=("fast",)), None)
    found = Counter[str]()
    characters = 0
    with path.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if not row["injection"]:
                characters += len(row["text"])
                verdict = guard.quick(row["text"], "user")
                found.update(one.label for one in (verdict.findings if verdict else ()))
    note = f"in {characters / 1e6:.1f} million characters of prompts, documentation, code, logs"
    mails = found.pop("EMAIL_ADDRESS", 0)
    kinds = ", ".join(f"{count} {label}" for label, count in found.most_common())
    yield Row("finds of the default entities in harmless texts", sum(found.values()), note=f"{note}: {kinds}")
    yield Row("e-mail addresses there, which are some", mails)


def _by_tagger() -> Iterable[Row]:
    """What training found of texts that the weights had not seen."""
    for what, told in json.loads(FIGURES.read_text())["figures"].items():
        if "f1" in told:
            others = ", ".join(f"{name} {figure}" for name, figure in told.items() if name != "f1")
            yield Row(f"tagger, {what}: F1", float(told["f1"]), note=others)
        else:
            yield Row(f"tagger, {what}: finds", told["finds"], note=f"in {told['characters']} characters")


def _presidio() -> Any:
    """None where the sidecar's packages are missing."""
    try:
        import spacy.util

        from gateway.sidecar.models.entities import Entities
    except ImportError:
        return None
    installed = sorted(name for name in spacy.util.get_installed_models() if name.startswith("en_"))
    return Entities({"en": installed[-1]} if installed else {})


def _by_presidio(labelled: Sequence[Labelled], model: Any) -> Iterable[Row]:
    if model is None:
        yield Row("Presidio alone", "not installed")
        return
    tally = Tally(labelled, lambda text: model.find(text, "en", PATTERN_TYPES), PATTERN_TYPES)
    precision, recall, f1, _ = tally.figures(*PATTERN_TYPES)
    yield Row(
        "Presidio alone, F1 over the same types", f1, note=f"precision {precision:.3f}, recall {recall:.3f}"
    )
    for entity in PATTERN_TYPES:
        precision, recall, f1, _ = tally.figures(entity)
        yield Row(f"Presidio alone, {entity}", f1, note=f"precision {precision:.3f}, recall {recall:.3f}")


def _recall(labelled: Sequence[Labelled], model: Any) -> Iterable[Row]:
    """Of both checks together, for every type of the data."""
    asked = ["DATE_TIME"] if model is not None else []
    if model is not None and model.has_names("en"):
        asked += sorted(NAMES)
    entities = (*PATTERNS, *asked)

    def find(text: str) -> Iterable[Finding]:
        yield from _patterns(text, tuple(PATTERNS))
        if asked:
            yield from model.find(text, "en", asked)

    hits, counts = Counter[str](), Counter[str]()
    order = {entity: place for place, entity in enumerate(entities)}
    for row in labelled:
        found = apart((it for it in find(row.text) if it.score >= THRESHOLD), order)
        for kind, entity, start, end in row.spans:
            counts[kind] += 1
            hits[kind] += any(it.label == entity and it.start < end and start < it.end for it in found)
    yield Row("recall of both checks over all types", sum(hits.values()) / max(1, sum(counts.values())))
    for kind, count in counts.most_common():
        entity = _PRESIDIO.get(kind, kind)
        note = (
            ""
            if entity in entities
            else "the tagger's, or a spaCy model's"
            if entity in NAMES
            else "Presidio has no such entity"
        )
        yield Row(f"recall of {kind}", hits[kind] / count, note=f"{count} spans{'; ' + note if note else ''}")


def _speed(labelled: Sequence[Labelled], model: Any) -> Iterable[Row]:
    text = "\n".join(row.text for row in labelled[:400])
    texts = [
        text[at : at + _CHARACTERS]
        for at in range(0, min(len(text), 30 * _CHARACTERS) - _CHARACTERS, _CHARACTERS)
    ]
    everything = Pii(PiiGuard(kind="pii", entities=tuple(PATTERNS), checks=("fast",)), None)
    secrets = Secrets(SecretsGuard(kind="secrets"))
    topics = Topics(TopicsGuard(kind="topics", words=tuple(f"term{number} of art" for number in range(2000))))
    for what, quick in (
        (f"PII, all {len(PATTERNS)} patterns", lambda each: everything.quick(each, "user")),
        ("secrets", lambda each: secrets.quick(each, "user")),
        ("topics, 2,000 phrases", lambda each: topics.quick(each, "user")),
    ):
        took = _median(quick, texts)
        yield Row(f"{what}: ms for 1,000 characters", took, "≤ 2", took <= 2)
    if model is None:
        return
    for what, entities in (
        ("one recognizer", ["US_BANK_NUMBER"]),
        ("four recognizers", ["US_BANK_NUMBER", "UK_POSTCODE", "MEDICAL_LICENSE", "DATE_TIME"]),
        ("what the patterns find too", list(PATTERN_TYPES)),
    ):
        took = _median(lambda each, entities=entities: model.find(each, "en", entities), texts)  # type: ignore[misc]
        yield Row(f"Presidio, {what}: ms for 1,000 characters", took, "≤ 25", took <= 25)


def _median(work: Callable[[str], object], texts: Sequence[str]) -> float:
    """Milliseconds, on this thread."""
    work(texts[0])
    took = []
    for text in texts:
        started = time.perf_counter()
        work(text)
        took.append(time.perf_counter() - started)
    return 1000 * statistics.median(took)
