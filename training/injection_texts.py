"""The texts that the injection guard is trained on, each with the source that it is from."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.injection_contrasts import contrast
from training.injection_corpus import corpus

OWN = "own"
"""The source of all texts that we wrote: they are trained on always, and count in no figure."""

FOLDS: Sequence[Sequence[str]] = (
    (
        "TensorTrust hijack", "TensorTrust extract", "source code", "CLINC150 train",
        "DSTC8 Events_1", "DSTC8 Homes_1", "Restaurants-8k", "social nl", "social pl",
    ),
    ("InjecAgent ds_base", "technical docs", "Quora", "garak", "T0 tasks", "moderation"),
    ("BIPIA", "logs (loghub)", "RouteLLM", "social zh", "PurpleLlama", "configuration", "social de"),
    ("InjecGuard", "NotInject", "Wikipedia sentences", "T0 answers", "XSTest", "social en"),
)  # fmt: skip
"""Sources that are left out together: each text is judged by weights that saw nothing from where it comes."""

_OF_TOOLS = frozenset({"InjecAgent ds_base", "BIPIA"})
_OF_BOTH = frozenset(
    {
        "Wikipedia sentences",
        "source code",
        "configuration",
        "technical docs",
        "logs (loghub)",
        "T0 answers",
        "moderation",
    }
)
"""Sources of texts that tools return, and that users paste."""
_OWN_OF_TOOLS = frozenset({"tool results"})
_OWN_OF_BOTH = frozenset(
    {
        "carrier", "long carrier", "duties", "foreign", "scraps", "trigger words", "override", "marker", "extraction",
        "override after a question", "hijacking", "mode switch", "foreign sentences",
    }
)  # fmt: skip

MOST = 250
"""Harmless texts of one public source, drawn at random."""


@dataclass
class Text:
    text: str
    attack: int
    label: str
    """``injection``, ``indirect`` or ``jailbreak``; nothing where it is harmless."""
    source: str
    kind: str

    @property
    def origins(self) -> tuple[str, ...]:
        """Whose weights learn from it, ``user`` or ``tool``: an order in a tool's result may be a user's wish."""
        if self.source == OWN:
            if self.kind in _OWN_OF_TOOLS or self.label == "indirect":
                return ("tool",)
            return (
                ("user", "tool")
                if self.kind in _OWN_OF_BOTH or self.kind.startswith("attacks")
                else ("user",)
            )
        if self.source in _OF_TOOLS:
            return ("tool",)
        shared = self.source in _OF_BOTH or self.source.startswith("social")
        return ("user", "tool") if shared else ("user",)


def texts(data: Path, seed: int = 0) -> list[Text]:
    """All texts, none of them twice. Raises ``OSError`` if ``data`` lacks a file."""
    chance = random.Random(seed)
    by_source: dict[tuple[str, int], list[Text]] = {}
    for one in {one.text: one for one in _public(data)}.values():
        by_source.setdefault((one.source, one.attack), []).append(one)
    made = [
        one
        for (_, attack), found in by_source.items()
        for one in (found if attack or len(found) <= MOST else chance.sample(found, MOST))
    ]
    made.extend(
        Text(one.text, int(bool(one.label)), one.label, OWN, one.family) for one in (*contrast(), *corpus())
    )
    return list({one.text: one for one in reversed(made)}.values())[::-1]


def _public(data: Path) -> Iterator[Text]:
    def rows(name: str) -> list[dict[str, Any]]:
        with (data / f"{name}.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def harmless(found: Sequence[str], source: str) -> Iterator[Text]:
        for text in found:
            yield Text(text, 0, "", source, "harmless")

    for row in rows("injection"):
        yield _attack_or_not(row)
    for row in rows("broad/prompts"):
        if row["kind"] == "system":
            continue  # a developer's own words may instruct: the guard does not look at them
        label = ("indirect" if row["kind"] == "tool" else "injection") if row["injection"] else ""
        yield Text(row["text"], row["injection"], label, row["source"], row["kind"])
    yield from harmless([row["text"] for row in rows("routing")], "RouteLLM")
    yield from harmless([text for row in rows("question_pairs") for text in (row["a"], row["b"])], "Quora")
    yield from harmless([row["text"] for row in rows("xstest") if row["label"] == "safe"], "XSTest")
    yield from harmless([row["text"] for row in rows("moderation")], "moderation")
    social = rows("broad/toxicity")
    for language in sorted({row["language"] for row in social}):
        found = [row["text"] for row in social if row["language"] == language]
        yield from harmless(found, f"social {language}")


def _attack_or_not(row: dict[str, Any]) -> Text:
    kind, attack = row["kind"], row["injection"]
    jailbreak, indirect = kind == "jailbreak", kind.startswith("indirect")
    label = "jailbreak" if jailbreak else "indirect" if indirect else "injection"
    source = "NotInject" if kind.startswith("NotInject") else row["source"]
    return Text(row["text"], attack, label if attack else "", source, kind)


def fold_of(made: Sequence[Text]) -> np.ndarray:
    """Of each text the number of its fold in ``FOLDS``, or -1."""
    numbers = {source: number for number, sources in enumerate(FOLDS) for source in sources}
    return np.array([numbers.get(one.source, -1) for one in made])


def weights(made: Sequence[Text], counts: Sequence[float]) -> np.ndarray:
    """What each of a number of texts counts for in training, ``counts`` being what it would without its source.

    A source grows with the power 3/4 of its texts, up to 600 of them, and all attacks are half of what the harmless
    texts are.
    """
    key = [(one.source, one.kind if one.source == OWN else "", one.attack) for one in made]
    sums: Counter[tuple[str, str, int]] = Counter()
    for each, count in zip(key, counts, strict=True):
        sums[each] += count  # type: ignore[assignment]
    found = np.array([c / sums[k] * min(sums[k], 600) ** 0.75 for k, c in zip(key, counts, strict=True)])
    attack = np.array([bool(one.attack) for one in made])
    found[attack] *= found[~attack].sum() / found[attack].sum() / 2
    return found / found.mean()
