"""Toxicity: what cross-validation found of texts not seen in training, and what is shipped on the data given."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.guards.report import Row
from gateway.guards.evaluation import (
    TOXICITY_CATEGORIES,
    Scanner,
    toxicity,
    toxicity_scorer,
    toxicity_weights,
)
from gateway.policy.schema.guards import ToxicityGuard
from gateway.sidecar.api import Scored, SidecarLoading

FIGURES = Path(__file__).resolve().parents[2] / "gateway/sidecar/heads/toxicity.json"
SAMPLE = 1_500
"""Ordinary questions that are looked at."""
MODERATION: Mapping[str, tuple[str, ...]] = {
    "hate": ("H", "H2"),
    "harassment": ("HR",),
    "violence": ("V", "V2"),
    "sexual": ("S", "S3"),
    "self_harm": ("SH",),
}
TARGETS: Mapping[str, tuple[str, float]] = {
    "HateCheck AUC, whole guard": ("≥", 0.90),
    "HateCheck AUC, hate, fast and head": ("≥", 0.90),
    "HateCheck AUC, any category, fast and head": ("≥", 0.90),
    "moderation AUC, whole guard": ("≥", 0.90),
    "moderation AUC, any category, fast and head": ("≥", 0.90),
    "XSTest safe, flagged": ("≤", 0.03),
    "questions, flagged": ("≤", 0.005),
    "routing prompts, flagged": ("≤", 0.005),
    "mean AUC of English sources left out": ("≥", 0.85),
}
MOST_OF_A_GROUP = 0.03
"""Of the harmless sentences about any group, the share that may be flagged."""
MOST_OF_FRAMES = 0.01
"""Of the harmless sentences in the frames of insults and despair."""


def rows(data: Path) -> list[Row]:
    return [*_validated(), *_shipped(data)]


def _row(what: str, value: float, note: str) -> Row:
    if what not in TARGETS:
        return Row(what, value, note=note)
    sign, target = TARGETS[what]
    return Row(what, value, f"{sign} {target:g}", value >= target if sign == "≥" else value <= target, note)


def _validated() -> Iterator[Row]:
    """What training measured: its headline is what the guard makes of sources that it has not seen."""
    figures = json.loads(FIGURES.read_text("utf-8"))
    mean = "mean AUC of English sources left out"
    yield _row(mean, figures[mean], "HateCheck, moderation, tweets, Stormfront")
    for scheme, note in (
        ("left out", "its source left out"),
        ("third left out", "unseen texts of sources seen"),
    ):
        for one in figures[scheme]:
            name = f"{one['source']} ({one['language']})"
            yield Row(f"{name} AUC", one["auc"], note=f"{one['texts']} texts; {note}")
            yield Row(
                f"{name} found at 1 % and 5 % harmless",
                f"{one['recall_at_1']:.2f}, {one['recall_at_5']:.2f}",
                note=note,
            )
            yield Row(
                f"{name} flagged, toxic and harmless", f"{one['found']:.2f}, {one['refused']:.3f}", note=note
            )
    for scheme in ("groups", "groups of HateCheck, left out"):
        for one in figures[scheme]:
            flagged = one["flagged"]
            yield Row(
                f"harmless about {one['group']} ({one['language']}), flagged",
                flagged,
                f"≤ {MOST_OF_A_GROUP:g}",
                flagged <= MOST_OF_A_GROUP,
                f"{one['texts']} texts; {scheme}",
            )
    yield from _frames(figures["kinds"])
    for what, value in figures["cross-validated"]["a third left out"].items():
        yield _row(what, value, "unseen texts of sources seen")


def _frames(kinds: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Sentences of our own that are never trained on: harmless ones in harmful frames, insults, despair."""
    asked: dict[str, list[tuple[int, float]]] = {}
    for one in kinds:
        harmful = one["kind"] in ("insults", "despair")
        asked.setdefault(one["kind"] if harmful else "harmless", []).append((one["texts"], one["flagged"]))
    for kind, parts in asked.items():
        texts = sum(count for count, _ in parts)
        share = sum(count * flagged for count, flagged in parts) / texts
        note = f"{texts} sentences in eight languages; none trained on"
        if kind == "harmless":
            yield Row(
                "harmless in the frames of insults and despair, flagged",
                share,
                f"≤ {MOST_OF_FRAMES:g}",
                share <= MOST_OF_FRAMES,
                note,
            )
        else:
            yield Row(f"{kind} in frames not trained on, found", share, note=note)


def _shipped(data: Path) -> Iterator[Row]:
    note = "shipped, on the data given"
    yield Row(
        "fast check, ms for 1,000 characters", _speed(data), "≤ 2", _speed(data) <= 2, "median, one core"
    )
    try:
        sidecar: Any = _InProcess()
    except ImportError:
        yield Row("shipped head", "not measured", note="its libraries are not installed")
        return
    judged = asyncio.run(_judge(data, sidecar))
    hatecheck, moderation = judged["hatecheck"], judged["moderation"]
    hateful = [row["label"] == "hateful" for row, _, _ in hatecheck]
    unsafe = [
        any(row.get(name) == 1 for names in MODERATION.values() for name in names) for row, _, _ in moderation
    ]
    checks = "fast and head"
    yield _row(f"HateCheck AUC, hate, {checks}", _auc(hateful, [s["hate"] for _, s, _ in hatecheck]), note)
    best = [max(scores.values()) for _, scores, _ in hatecheck]
    yield _row(f"HateCheck AUC, any category, {checks}", _auc(hateful, best), note)
    best = [max(scores.values()) for _, scores, _ in moderation]
    yield _row(f"moderation AUC, any category, {checks}", _auc(unsafe, best), note)
    for category, names in MODERATION.items():
        known = [
            (1 in values, scores[category])
            for row, scores, _ in moderation
            if 1 in (values := [row.get(name) for name in names]) or None not in values
        ]
        auc = _auc([truth for truth, _ in known], [score for _, score in known])
        yield _row(f"moderation AUC, {category}, {checks}", auc, note)
    flags = {
        "HateCheck hateful, flagged": [flag for row, _, flag in hatecheck if row["label"] == "hateful"],
        "HateCheck non-hateful, flagged": [flag for row, _, flag in hatecheck if row["label"] != "hateful"],
        "moderation unsafe, flagged": [
            flag for (_, _, flag), bad in zip(moderation, unsafe, strict=True) if bad
        ],
        "moderation safe, flagged": [
            flag for (_, _, flag), bad in zip(moderation, unsafe, strict=True) if not bad
        ],
        "XSTest safe, flagged": [flag for row, _, flag in judged["xstest"] if row["label"] == "safe"],
        "XSTest unsafe, flagged": [flag for row, _, flag in judged["xstest"] if row["label"] == "unsafe"],
        "questions, flagged": [flag for _, _, flag in judged["questions"]],
        "routing prompts, flagged": [flag for _, _, flag in judged["routing"]],
    }
    for what, mine in flags.items():
        yield _row(what, round(sum(mine) / max(len(mine), 1), 4), f"{len(mine)} texts; {note}")


Judged = list[tuple[dict[str, Any], Mapping[str, float], bool]]
"""A row of the data, the guard's probabilities, and whether it is flagged by a guard without further keys."""


async def _judge(data: Path, sidecar: Any) -> dict[str, Judged]:
    chance = random.Random(1)
    texts = {name: _read(data / f"{name}.jsonl") for name in ("hatecheck", "moderation", "xstest", "routing")}
    pairs = [{"text": text} for row in _read(data / "question_pairs.jsonl") for text in (row["a"], row["b"])]
    texts["questions"] = chance.sample(pairs, min(SAMPLE, len(pairs)))
    texts["routing"] = chance.sample(texts["routing"], min(SAMPLE // 3, len(texts["routing"])))
    guard = toxicity(ToxicityGuard(kind="toxicity"), sidecar, None)
    score = toxicity_scorer(sidecar)
    found: dict[str, Judged] = {}
    for name, rows in texts.items():
        scored = name in ("hatecheck", "moderation")
        found[name] = [
            (row, _highest(await score([row["text"]])) if scored else {}, await _flagged(guard, row["text"]))
            for row in rows
        ]
    return found


def _highest(windows: Sequence[Sequence[Scored]]) -> Mapping[str, float]:
    return {label: max(part.scores[label] for part in windows[0]) for label in TOXICITY_CATEGORIES}


async def _flagged(guard: Scanner, text: str) -> bool:
    verdict = guard.quick(text, "user") or (await guard.thorough([text], "user"))[0]
    return bool(verdict.findings)


def _auc(truth: Sequence[bool], scores: Sequence[float]) -> float:
    """The chance that one that is true has a higher score than one that is not; half of it where they are equal."""
    positives, wins, below = sum(truth), 0.0, 0
    for _, equal in groupby(sorted(zip(scores, truth, strict=True)), key=itemgetter(0)):
        mine = [true for _, true in equal]
        wins += sum(mine) * (below + mine.count(False) / 2)
        below += mine.count(False)
    return round(wins / max(positives * (len(truth) - positives), 1), 4)


def _speed(data: Path) -> float:
    fast = toxicity_weights().fast
    long = [row["text"][:1000] for row in _read(data / "moderation.jsonl") if len(row["text"]) >= 1000][:100]
    took = []
    for text in long:
        started = time.perf_counter()
        fast.probabilities(text)
        took.append(time.perf_counter() - started)
    return round(statistics.median(took) * 1000, 3)


def _read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class _InProcess:
    """The sidecar's embedder and head, without the process around them: quality is measured here, not time."""

    def __init__(self) -> None:
        from gateway.sidecar.models.embedder import BuiltInEmbedder
        from gateway.sidecar.models.heads import Head, vectors

        self._embedder = BuiltInEmbedder()
        self._head = Head.load(FIGURES.with_suffix(".npz"))
        self._vectors = vectors
        self._known: dict[str, list[Scored]] = {}

    async def score(self, head: str, texts: Sequence[str]) -> list[list[Scored]]:
        return [self._known.get(text) or self._known.setdefault(text, self._windows(text)) for text in texts]

    def _windows(self, text: str) -> list[Scored]:
        return [self._window(text, *span) for span in self._embedder.windows(text, 1000)]

    def _window(self, text: str, start: int, end: int) -> Scored:
        encoding = self._embedder.encode([text[start:end]])
        scores = self._head(self._vectors(encoding, self._embedder.pools, self._head.pools))[0]
        return Scored(start, end, dict(zip(self._head.labels, map(float, scores), strict=True)))

    async def classify(self, model: str, texts: Sequence[str]) -> list[list[Scored]]:
        raise SidecarLoading("only the shipped head is measured here")
