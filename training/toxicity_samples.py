"""The public sets that the toxicity guard is trained on, in one form, and the contrasts beside them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.guards.evaluation import TOXICITY_CATEGORIES as CATEGORIES
from training.toxicity_contrasts import contrasts

MODERATION: Mapping[str, tuple[str, ...]] = {
    "hate": ("H", "H2"),
    "harassment": ("HR",),
    "violence": ("V", "V2"),
    "sexual": ("S", "S3"),
    "self_harm": ("SH",),
}


@dataclass(frozen=True)
class Sample:
    text: str
    labels: Mapping[str, float]
    """1 or 0; a category that is not named is not known."""
    source: str
    kind: str = ""
    """What the set itself says of it: HateCheck's functionality, XSTest's label."""


def samples(data: Path) -> list[Sample]:
    def rows(name: str) -> list[dict[str, Any]]:
        with (data / f"{name}.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    chance = random.Random(0)
    none = dict.fromkeys(CATEGORIES, 0.0)
    found = []
    for row in rows("hatecheck"):
        kind = row["functionality"]
        if row["label"] == "hateful":
            labels = {"hate": 1.0, "sexual": 0.0, "self_harm": 0.0}
        elif kind in ("target_indiv_nh", "target_group_nh"):  # abuse, but not of a protected group
            labels = {"hate": 0.0, "sexual": 0.0, "self_harm": 0.0}
        else:
            labels = none
        found.append(Sample(row["text"], labels, "hatecheck", kind))
    for row in rows("moderation"):
        labels = {}
        for category, names in MODERATION.items():
            known = [row.get(name) for name in names]
            if 1 in known or None not in known:
                labels[category] = float(1 in known)
        found.append(Sample(row["text"], labels, "moderation", "any" if 1 in labels.values() else ""))
    found += [Sample(row["text"], _xstest(row), "xstest", row["label"]) for row in rows("xstest")]
    for row in rows("offensive_tweets"):
        if row["class"] == "hate":
            found.append(Sample(row["text"], {"hate": 1.0}, "tweets"))
        elif row["class"] == "neither":
            found.append(Sample(row["text"], none, "tweets"))
        elif row["hate"] == 0 and chance.random() < 0.2:
            found.append(Sample(row["text"], {"violence": 0.0, "self_harm": 0.0}, "tweets"))
    questions = [text for row in rows("question_pairs") for text in (row["a"], row["b"])]
    found += [Sample(text, none, "questions") for text in chance.sample(questions, 4000)]
    found += [Sample(row["text"], none, "routing") for row in chance.sample(rows("routing"), 2000)]
    found += [
        Sample(
            text, none if not labels else {name: float(value) for name, value in labels.items()}, "contrasts"
        )
        for text, labels in contrasts()
    ]
    return found


def _xstest(row: Mapping[str, str]) -> Mapping[str, float]:
    kind = row["type"]
    if row["label"] == "safe":
        return dict.fromkeys(CATEGORIES, 0.0)
    if "discr" in kind:
        return {"hate": 1.0, "violence": 0.0, "sexual": 0.0, "self_harm": 0.0}
    if "privacy" in kind or "historical" in kind:
        return {"sexual": 0.0, "self_harm": 0.0}
    if re.search("suicid|myself|self.harm", row["text"], re.I):
        return {"hate": 0.0, "sexual": 0.0, "self_harm": 1.0}
    return {"hate": 0.0, "violence": 1.0}
