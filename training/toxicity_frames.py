"""Frames that harmful sentences share with harmless ones, filled with both: what an insult, a threat or despair begins
with ("Du bist ein …", "I want to end …") is also how people begin a role prompt or give up smoking.

And sentences in such frames that are never trained on, to see whether that was learned of the frames or by heart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from training.toxicity_contrasts import HARMLESS, SELF_HARM, THREAT, VIOLENCE, loosely
from training.toxicity_sentences import INSULT, Labels, Written

_LABELS: Mapping[str, Labels] = {
    "harmless": HARMLESS,
    "insult": INSULT,
    "despair": SELF_HARM,
    "threat": THREAT,
    "violence": VIOLENCE,
}
EACH, HARMFUL_EACH = 10, 5
"""Harmless fillings of a frame, unless it says otherwise; and harmful ones, of each kind."""
_FOLLOWED = {"harmless": 0.5}
"""How often another sentence follows; an insult is rarely followed by a request."""
_SELDOM = 0.15
HARMFUL = frozenset({"insults", "despair"})
"""Kinds of the sentences to test with that are to be found; all others are harmless."""


class Check(NamedTuple):
    """A sentence to test with."""

    text: str
    kind: str
    """What it is about: ``roles``, ``praise``, ``endings``, ``technical``, ``everyday``; or one of ``HARMFUL``."""
    language: str


def frames(seed: int = 0) -> Iterator[Written]:
    """To train on."""
    chance = random.Random(seed)
    for language, groups in _read("toxicity_frames").items():
        for group in groups:
            for text, labels in _filled(group, chance):
                yield Written(
                    text if language == "zh" else loosely(text.rstrip(".!"), chance), labels, language
                )


def checks() -> Iterator[Check]:
    """To test on, never to train on."""
    for language, kinds in _read("toxicity_check").items():
        for kind, texts in kinds.items():
            for text in texts:
                yield Check(text, kind, language)


def _filled(group: Mapping[str, Any], chance: random.Random) -> Iterator[tuple[str, Labels]]:
    then: Sequence[str] = group.get("then", ())
    for frame in group["frames"]:
        for kind, labels in _LABELS.items():
            fillings: Sequence[str] = group.get(kind, ())
            many = group.get("each", EACH) if kind == "harmless" else HARMFUL_EACH
            if frame == "{}":
                many = len(fillings)
            for filling in chance.sample(fillings, min(many, len(fillings))):
                text = frame.format(filling)
                if then and chance.random() < _FOLLOWED.get(kind, _SELDOM):
                    text = _joined(text, chance.choice(then))
                yield text[0].upper() + text[1:], labels


def _joined(first: str, second: str) -> str:
    if second[0] in ",。":  # Chinese, which has no spaces
        return f"{first.rstrip('?')}{second}"
    return f"{first} {second}" if first[-1] in ".?!" else f"{first}. {second}"


@cache
def _read(name: str) -> Mapping[str, Any]:
    path = Path(__file__).with_name(f"{name}.yaml")
    read: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return read
