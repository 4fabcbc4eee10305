"""Trains the toxicity guard: ``python -m training.toxicity [--data FOLDER] [--cache FILE] [--measure]``.

Writes ``gateway/guards/scanners/data/toxicity.json`` (the fast check, and how both checks are made one),
``gateway/sidecar/heads/toxicity.npz`` (the head) and beside it ``toxicity.json`` with what was measured: each source by
models that have seen none of it, random rows by models that have seen the others, harmless sentences by whom they
are about, and sentences of our own in the frames of insults and despair. What is shipped is trained on all rows.
``--measure`` writes nothing but prints those tables of what is shipped, whose sources have been seen but for those it
was not trained on. The cache keeps embeddings between runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

from gateway.guards.evaluation import TOXICITY_CATEGORIES as CATEGORIES  # noqa: E402
from gateway.guards.evaluation import is_foreign  # noqa: E402
from training.toxicity_corpus import Corpus, Embeddings, Scores  # noqa: E402
from training.toxicity_fit import Head, head_log_odds, ngrams  # noqa: E402
from training.toxicity_frames import checks  # noqa: E402
from training.toxicity_samples import OWN, samples  # noqa: E402
from training.toxicity_sentences import identities  # noqa: E402
from training.toxicity_tables import (  # noqa: E402
    Group,
    Kind,
    Line,
    groups,
    groups_table,
    kinds,
    kinds_table,
    line,
    mean_auc,
    sources_table,
)

FAST = ROOT / "gateway/guards/scanners/data/toxicity.json"
HEAD = ROOT / "gateway/sidecar/heads/toxicity.npz"
ENGLISH, FOREIGN = (0.8, 0.45, 0.0), (0.1, 1.1, -0.5)
"""What the log-odds of the head and of the fast check count for, and what is added, by the language of a window."""
OFFSETS = {"hate": -0.85, "harassment": 0.35, "violence": 0.4, "sexual": 1.0, "self_harm": 2.2}
"""Added to the log-odds of each category: so much that at 0.5 few harmless texts are flagged, those with harsh words,
those of the moderation set and those that name a group included."""
CLEAR = (0.03, 0.97)
SOURCES = {
    "HateCheck": "hatecheck",
    "moderation": "moderation",
    "tweets": "tweets",
    "Stormfront": "stormfront",
    "XSTest": "xstest",
    "GermEval": "germeval",
    "COLD": "cold",
    "Multilingual HateCheck": "multilingual",
}
"""Those that are left out in turn, by the name that tables have."""
OF_HATE = frozenset({"HateCheck", "Stormfront", "Multilingual HateCheck"})
"""Sources that call only hate of groups toxic, and insults of one person harmless."""
ENGLISH_MEAN = ("HateCheck", "moderation", "tweets", "Stormfront")
"""XSTest is left out of the mean: what is unsafe in it are questions about crimes and privacy, few of them toxic."""


class Judged:
    """What the guard makes of texts: the log-odds of its checks made one, and whether it flags them."""

    def __init__(self, corpus: Corpus, rows: np.ndarray, scores: Scores) -> None:
        """``scores`` are those of the samples that ``rows`` (booleans) names."""
        quick, wording, head = scores
        places = np.flatnonzero(rows)
        owner = np.searchsorted(places, corpus.owner[rows[corpus.owner]])
        windows = np.array(corpus.windows, object)[rows[corpus.owner]]
        self.quick = quick
        self.both = np.full(quick.shape, -np.inf)
        np.maximum.at(self.both, owner, joined(windows, wording, head))
        low, high = (np.log(bound / (1 - bound)) for bound in CLEAR)
        self.decided = (quick.max(1) <= low) | (quick.max(1) >= high)
        """By the fast check."""
        self.guard = np.where(self.decided, quick.max(1), self.both.max(1))
        self.flagged = self.guard >= 0

    def part(self, mine: np.ndarray) -> Judged:
        """Of some of the texts."""
        part = copy(self)
        part.quick, part.both, part.guard = self.quick[mine], self.both[mine], self.guard[mine]
        part.decided, part.flagged = self.decided[mine], self.flagged[mine]
        return part


def joined(windows: Sequence[str], wording: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Log-odds by window and category."""
    shares = np.array([FOREIGN if is_foreign(window) else ENGLISH for window in windows])
    return shares[:, :1] * head + shares[:, 1:2] * wording + shares[:, 2:] + [*OFFSETS.values()]


def left_out(corpus: Corpus) -> tuple[list[Line], list[Group]]:
    """Each source by models that have seen none of it; and HateCheck's harmless sentences by whom they name."""
    lines: list[Line] = []
    named: list[tuple[str, str, bool]] = []
    for name, source in SOURCES.items():
        rows = corpus.source == source
        fast, head = corpus.train(~rows)
        judged = Judged(corpus, rows, corpus.scores(ngrams(fast), head, rows))
        lines += _lines(corpus, name, rows, judged)
        if source == "hatecheck":
            mine = [corpus.samples[index] for index in np.flatnonzero(rows)]
            named += [
                (one.group, one.language, bool(flag))
                for one, flag in zip(mine, judged.flagged, strict=True)
                if one.kind in ("ident_neutral_nh", "ident_pos_nh")
            ]
        print(sources_table(lines[-1:]).splitlines()[-1], flush=True)
    return lines, [*groups(named)]


def _lines(corpus: Corpus, name: str, rows: np.ndarray, judged: Judged) -> Iterator[Line]:
    toxic = np.array([corpus.samples[index].toxic for index in np.flatnonzero(rows)], bool)
    languages = corpus.language[rows]
    for language in sorted(set(languages)):
        mine = languages == language
        scores, flagged = judged.both[mine], judged.flagged[mine]
        meant = scores[:, CATEGORIES.index("hate")] if name in OF_HATE else scores.max(1)
        yield line(name, language, toxic[mine], scores.max(1), meant, flagged)


def third(corpus: Corpus) -> np.ndarray:
    """A third of the texts of every source but our own, as booleans."""
    foreign = ~np.isin(corpus.source, [*OWN])
    names = np.array([f"{sample.source} {sample.text}" for sample in corpus.samples], object)
    order = sorted(set(names[foreign]))
    random.Random(0).shuffle(order)
    chosen = frozenset(order[::3])
    return np.array([name in chosen for name in names]) & foreign


def within_sources(corpus: Corpus, rows: np.ndarray, judged: Judged) -> list[Line]:
    """Texts of ``rows``, by source: they were not trained on, but others of their source were."""
    lines: list[Line] = []
    for name, source in SOURCES.items():
        mine = corpus.source[rows] == source
        lines += _lines(corpus, name, rows & (corpus.source == source), judged.part(mine))
    return lines


def figures(corpus: Corpus, rows: np.ndarray, judged: Judged) -> dict[str, float]:
    """Of those texts: by category, and what is flagged of texts that should not be."""
    source, kind, targets = corpus.source[rows], corpus.kind[rows], corpus.targets[rows]
    moderation, hatecheck, xstest = source == "moderation", source == "hatecheck", source == "xstest"
    hateful = targets[:, CATEGORIES.index("hate")] == 1
    found: dict[str, float] = {}
    for name, scores in (("fast", judged.quick), ("fast and head", judged.both)):
        found[f"HateCheck AUC, hate, {name}"] = _auc(hateful[hatecheck], scores[hatecheck, 0])
        found[f"moderation AUC, any category, {name}"] = _auc(
            kind[moderation] == "any", scores[moderation].max(1)
        )
        for index, category in enumerate(CATEGORIES):
            known = moderation & ~np.isnan(targets[:, index])
            found[f"moderation AUC, {category}, {name}"] = _auc(targets[known, index], scores[known, index])
    found["HateCheck AUC, whole guard"] = _auc(hateful[hatecheck], judged.guard[hatecheck])
    found["moderation AUC, whole guard"] = _auc(kind[moderation] == "any", judged.guard[moderation])
    shares = {
        "HateCheck hateful": hatecheck & hateful,
        "HateCheck non-hateful": hatecheck & ~hateful,
        "moderation unsafe": moderation & (kind == "any"),
        "moderation safe": moderation & (kind != "any"),
        "moderation self-harm": moderation & (targets[:, CATEGORIES.index("self_harm")] == 1),
        "XSTest safe": xstest & (kind == "safe"),
        "XSTest unsafe": xstest & (kind == "unsafe"),
        "questions": source == "questions",
        "routing prompts": source == "routing",
        "ordinary prompts": source == "prompts",
    }
    for name, mine in shares.items():
        found[f"{name}, flagged"] = round(float(judged.flagged[mine].mean()), 4)
        found[f"{name}, decided by the fast check"] = round(float(judged.decided[mine].mean()), 4)
    return found


def _auc(truth: np.ndarray, scores: np.ndarray) -> float:
    return round(float(roc_auc_score(truth, scores)), 4)


def by_group(fast: Mapping[str, Any], head: Head, embeddings: Embeddings) -> list[Group]:
    """Harmless sentences of patterns that are never trained on."""
    named = [*identities()]
    flags = (_short(fast, head, embeddings, [one.text for one in named]) >= 0).any(1)
    return [*groups((one.group, one.language, bool(flag)) for one, flag in zip(named, flags, strict=True))]


def by_kind(fast: Mapping[str, Any], head: Head, embeddings: Embeddings) -> list[Kind]:
    """Sentences of our own in the frames of insults and despair, which are never trained on.

    Despair counts as found where it gets the supportive reply.
    """
    asked = [*checks()]
    reached = _short(fast, head, embeddings, [one.text for one in asked]) >= 0
    helped = reached[:, CATEGORIES.index("self_harm")]
    return [
        *kinds(
            (one.kind, one.language, bool(supported if one.kind == "despair" else flag))
            for one, flag, supported in zip(asked, reached.any(1), helped, strict=True)
        )
    ]


def _short(fast: Mapping[str, Any], head: Head, embeddings: Embeddings, texts: Sequence[str]) -> np.ndarray:
    """Log-odds ``[texts, categories]`` of the check that decides, of texts that are one window."""
    model = ngrams(fast)
    wording = np.array([model.log_odds(text) for text in texts])
    low, high = (np.log(bound / (1 - bound)) for bound in CLEAR)
    both = joined(texts, wording, head_log_odds(head, embeddings(texts)))
    decided = (wording.max(1) <= low) | (wording.max(1) >= high)
    return np.where(decided[:, None], wording, both)


def write(fast: Mapping[str, Any], head: Head) -> None:
    shares = {"english": ENGLISH, "foreign": FOREIGN, "offset": OFFSETS, "clear": CLEAR}
    FAST.write_text(
        json.dumps(shares | dict(fast), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    np.savez_compressed(HEAD, **dict(head))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, help="an .npz file")
    parser.add_argument("--measure", action="store_true", help="only measure what is shipped")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    embeddings = Embeddings(arguments.cache)
    corpus = Corpus(samples(arguments.data), embeddings)
    if arguments.measure:
        measure(corpus, embeddings)
        return
    fast, head = corpus.train(np.ones(len(corpus.texts), bool))
    write(fast, head)
    people = by_group(fast, head, embeddings)
    everyday = by_kind(fast, head, embeddings)
    print(groups_table(people), kinds_table(everyday), sep="\n\n", flush=True)
    lines, of_hatecheck = left_out(corpus)
    rows = third(corpus)
    fast, head = corpus.train(~rows)
    judged = Judged(corpus, rows, corpus.scores(ngrams(fast), head, rows))
    report(
        lines,
        people,
        everyday,
        of_hatecheck,
        within_sources(corpus, rows, judged),
        figures(corpus, rows, judged),
    )


def report(
    lines: Sequence[Line],
    people: Sequence[Group],
    everyday: Sequence[Kind],
    of_hatecheck: Sequence[Group],
    within: Sequence[Line],
    found: Mapping[str, float],
) -> None:
    """Write what was measured beside the head."""
    print(groups_table(of_hatecheck), sources_table(within), json.dumps(found, indent=1), sep="\n\n")
    highest, own = mean_auc(lines, "en", ENGLISH_MEAN)
    measured = {
        "mean AUC of English sources left out": highest,
        "the same, by each source's own category": own,
        "left out": [asdict(one) for one in lines],
        "groups": [asdict(one) for one in people],
        "kinds": [asdict(one) for one in everyday],
        "groups of HateCheck, left out": [asdict(one) for one in of_hatecheck],
        "third left out": [asdict(one) for one in within],
        "cross-validated": {"a third left out": dict(found)},
    }
    HEAD.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def measure(corpus: Corpus, embeddings: Embeddings) -> None:
    """Print what the shipped weights make of the same texts."""
    fast = json.loads(FAST.read_text(encoding="utf-8"))
    with np.load(HEAD) as arrays:
        head = dict(arrays)
    lines: list[Line] = []
    for name, source in SOURCES.items():
        rows = corpus.source == source
        lines += _lines(corpus, name, rows, Judged(corpus, rows, corpus.scores(ngrams(fast), head, rows)))
    tables = (
        sources_table(lines),
        groups_table(by_group(fast, head, embeddings)),
        kinds_table(by_kind(fast, head, embeddings)),
    )
    print(*tables, sep="\n\n")


if __name__ == "__main__":
    main()
