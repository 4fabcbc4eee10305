"""The public sets that the toxicity guard is trained on, in one form, and the sentences of our own beside them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.guards.evaluation import TOXICITY_CATEGORIES as CATEGORIES
from training.toxicity_contrasts import contrasts
from training.toxicity_frames import frames
from training.toxicity_sentences import sentences

MODERATION: Mapping[str, tuple[str, ...]] = {
    "hate": ("H", "H2"),
    "harassment": ("HR",),
    "violence": ("V", "V2"),
    "sexual": ("S", "S3"),
    "self_harm": ("SH",),
}
NONE: Mapping[str, float] = dict.fromkeys(CATEGORIES, 0.0)
OFFENSIVE = 0.5
"""What a tweet counts as harassment that the crowd calls offensive, in most cases for a single word: above harmless
ones, and about as far as the threshold."""
BROAD = {
    "Stormfront (Vicomtech)": ("stormfront", "hate"),
    "GermEval 2018 train": ("germeval", "harassment"),
    "COLD train": ("cold", "hate"),
    "Multilingual HateCheck": ("multilingual", "hate"),
}
"""Of the broad set's sources: our name, and the category that is nearest to what each calls toxic."""
ORDINARY = frozenset(
    {
        "T0 tasks",
        "T0 answers",
        "CLINC150 train",
        "Restaurants-8k",
        "Wikipedia sentences",
        "DSTC8 Events_1",
        "DSTC8 Homes_1",
    }
)
BEGINNING = 800
"""Characters of an ordinary prompt."""
OWN = frozenset({"contrasts", "sentences", "frames"})
"""Sources of our own writing, which are always trained on."""


@dataclass(frozen=True)
class Sample:
    text: str
    labels: Mapping[str, float]
    """From 0 to 1; a category that is not named is not known."""
    source: str
    kind: str = ""
    """What the set itself says of it: HateCheck's functionality, XSTest's label."""
    toxic: bool | None = None
    """What the set says, where it says it in one word."""
    language: str = "en"
    group: str = ""
    """Of HateCheck, whom it is about."""


def samples(data: Path) -> list[Sample]:
    """Those of the folder of ``shared/data``. Raises OSError."""
    chance = random.Random(0)
    found = [*_hatecheck(data), *_moderation(data), *_tweets(data), *_broad(data)]
    found += [
        Sample(row["text"], _xstest(row), "xstest", row["label"], row["label"] == "unsafe")
        for row in _rows(data, "xstest")
    ]
    questions = [text for row in _rows(data, "question_pairs") for text in (row["a"], row["b"])]
    found += [Sample(text, NONE, "questions") for text in chance.sample(questions, 4000)]
    found += [Sample(row["text"], NONE, "routing") for row in chance.sample(_rows(data, "routing"), 2000)]
    prompts = [row for row in _rows(data, "broad/prompts") if row["source"] in ORDINARY]
    found += [Sample(row["text"][:BEGINNING], NONE, "prompts") for row in chance.sample(prompts, 3000)]
    found += [Sample(text, _own(labels), "contrasts") for text, labels in contrasts()]
    found += [Sample(one.text, _own(one.labels), "sentences", language=one.language) for one in sentences()]
    found += [Sample(one.text, _own(one.labels), "frames", language=one.language) for one in frames()]
    return found


def _rows(data: Path, name: str) -> list[dict[str, Any]]:
    with (data / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _own(labels: Mapping[str, float]) -> Mapping[str, float]:
    return {name: float(value) for name, value in labels.items()} or NONE


def _hatecheck(data: Path) -> Iterator[Sample]:
    for row in _rows(data, "hatecheck"):
        kind, hateful = row["functionality"], row["label"] == "hateful"
        labels = NONE
        if hateful:
            labels = {"hate": 1.0, "sexual": 0.0, "self_harm": 0.0}
        elif kind in ("target_indiv_nh", "target_group_nh"):  # abuse, but not of a protected group
            labels = {"hate": 0.0, "sexual": 0.0, "self_harm": 0.0}
        yield Sample(row["text"], labels, "hatecheck", kind, hateful, group=row["target"])


def _moderation(data: Path) -> Iterator[Sample]:
    for row in _rows(data, "moderation"):
        labels = {}
        for category, names in MODERATION.items():
            known = [row.get(name) for name in names]
            if 1 in known or None not in known:
                labels[category] = float(1 in known)
        unsafe = 1 in labels.values()
        yield Sample(row["text"], labels, "moderation", "any" if unsafe else "", unsafe)


def _tweets(data: Path) -> Iterator[Sample]:
    for row in _rows(data, "offensive_tweets"):
        kind = row["class"]
        labels: Mapping[str, float] = NONE
        if kind == "hate":
            labels = {"hate": 1.0}
        elif kind == "offensive":
            labels = {"harassment": OFFENSIVE, "violence": 0.0, "self_harm": 0.0}
        yield Sample(row["text"], labels, "tweets", kind, kind != "neither")


def _broad(data: Path) -> Iterator[Sample]:
    for row in _rows(data, "broad/toxicity"):
        source, category = BROAD[row["source"]]
        toxic = row["toxic"] == 1
        yield Sample(
            row["text"], {category: 1.0} if toxic else NONE, source, toxic=toxic, language=row["language"]
        )


def _xstest(row: Mapping[str, str]) -> Mapping[str, float]:
    kind = row["type"]
    if row["label"] == "safe":
        return NONE
    if "discr" in kind:
        return {"hate": 1.0, "violence": 0.0, "sexual": 0.0, "self_harm": 0.0}
    if "privacy" in kind or "historical" in kind:
        return {"sexual": 0.0, "self_harm": 0.0}
    if re.search("suicid|myself|self.harm", row["text"], re.I):
        return {"hate": 0.0, "sexual": 0.0, "self_harm": 1.0}
    return {"hate": 0.0, "violence": 1.0}
