"""What the toxicity guard finds in sources it was not trained on, and of whom it speaks ill without cause.

``python -m training.toxicity_tables`` prints the tables of ``docs/guards.md``, of what ``training.toxicity`` measured.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score


@dataclass(frozen=True)
class Line:
    """One source in one language, none of whose texts was trained on."""

    source: str
    language: str
    texts: int
    auc: float
    """By the highest category, as the guard decides."""
    own_auc: float
    """By the category that the source is about, where it is about one."""
    recall_at_1: float
    """Share of the toxic texts that is found where 1 % of the harmless ones is flagged."""
    recall_at_5: float
    found: float
    """Share of the toxic texts that is flagged at the default threshold, and of the harmless ones."""
    refused: float


@dataclass(frozen=True)
class Group:
    """Harmless sentences about one group."""

    group: str
    language: str
    texts: int
    flagged: float


@dataclass(frozen=True)
class Kind:
    """Sentences of our own of one kind in one language, as ``toxicity_frames.Check`` has them."""

    kind: str
    language: str
    texts: int
    flagged: float


def line(
    source: str, language: str, toxic: np.ndarray, scores: np.ndarray, meant: np.ndarray, flagged: np.ndarray
) -> Line:
    """``toxic`` and ``flagged`` are booleans, ``scores`` log-odds of any category and ``meant`` of the source's own;
    all have an entry for each text."""
    at_1, at_5 = (recall(toxic, scores, share) for share in (0.01, 0.05))
    return Line(
        source,
        language,
        len(toxic),
        round(float(roc_auc_score(toxic, scores)), 3),
        round(float(roc_auc_score(toxic, meant)), 3),
        *(round(float(value), 3) for value in (at_1, at_5, flagged[toxic].mean(), flagged[~toxic].mean())),
    )


def recall(toxic: np.ndarray, scores: np.ndarray, share: float) -> float:
    """Of the toxic texts, above the score that ``share`` of the harmless ones exceeds."""
    harmless = np.sort(scores[~toxic])[::-1]
    return float((scores[toxic] > harmless[int(share * len(harmless))]).mean())


def groups(named: Iterable[tuple[str, str, bool]]) -> Iterator[Group]:
    """Of (group, language, flagged) for each sentence."""
    found: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for group, language, flagged in named:
        found[language, group].append(flagged)
    for (language, group), flags in sorted(found.items()):
        yield Group(group, language, len(flags), round(sum(flags) / len(flags), 4))


def kinds(named: Iterable[tuple[str, str, bool]]) -> Iterator[Kind]:
    """Of (kind, language, flagged) for each sentence."""
    for one in groups(named):
        yield Kind(one.group, one.language, one.texts, one.flagged)


def mean_auc(lines: Iterable[Line], language: str, sources: Sequence[str]) -> tuple[float, float]:
    """Of the sources named, in that language: by the highest category, and by each source's own."""
    mine = [one for one in lines if one.language == language and one.source in sources]
    return (
        round(sum(one.auc for one in mine) / len(mine), 3),
        round(sum(one.own_auc for one in mine) / len(mine), 3),
    )


def sources_table(lines: Iterable[Line]) -> str:
    """Markdown."""
    rows = [
        "| source | language | texts | AUC | by category | found at 1 % harmless | at 5 % | found | harmless flagged |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rows += [
        f"| {one.source} | {one.language} | {one.texts:,} | {one.auc:.3f} | {one.own_auc:.3f} | "
        f"{one.recall_at_1:.0%} | {one.recall_at_5:.0%} | {one.found:.0%} | {one.refused:.1%} |"
        for one in lines
    ]
    return "\n".join(rows)


def groups_table(found: Iterable[Group]) -> str:
    """Markdown: of each language, the groups by how many of their sentences are flagged."""
    rows = ["| language | flagged | groups |", "|---|--:|---|"]
    alike: dict[tuple[str, float, int], list[str]] = defaultdict(list)
    for one in found:
        alike[one.language, one.flagged, one.texts].append(one.group)
    rows += [
        f"| {language} | {flagged:.1%} of {texts} | {', '.join(sorted(names))} |"
        for (language, flagged, texts), names in sorted(alike.items())
    ]
    return "\n".join(rows)


def kinds_table(found: Iterable[Kind]) -> str:
    """Markdown: by language, the harmless sentences that are flagged, and the others that are found."""
    harmless = ("roles", "praise", "endings", "technical", "everyday")
    columns = (*((kind,) for kind in harmless), harmless, ("insults",), ("despair",))
    heads = [*harmless, "**harmless**", "insults found", "despair found"]
    rows = [f"| language | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
    every = [*found]
    languages = [*dict.fromkeys(one.language for one in every)]
    for language in [*languages, "all"]:
        mine = [one for one in every if language in (one.language, "all")]
        cells = []
        for column in columns:
            named = [one for one in mine if one.kind in column]
            texts = sum(one.texts for one in named)
            cells.append(f"{round(sum(one.flagged * one.texts for one in named))} of {texts}")
        rows.append(f"| {language} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    report = Path(__file__).resolve().parents[1] / "gateway/sidecar/heads/toxicity.json"
    measured = json.loads(report.read_text(encoding="utf-8"))
    for name in ("left out", "third left out"):
        print(f"{name}:", sources_table(Line(**one) for one in measured[name]), sep="\n\n", end="\n\n")
    print("kinds:", kinds_table(Kind(**one) for one in measured["kinds"]), sep="\n\n", end="\n\n")
    for name in ("groups", "groups of HateCheck, left out"):
        print(f"{name}:", groups_table(Group(**one) for one in measured[name]), sep="\n\n", end="\n\n")


if __name__ == "__main__":
    main()
