"""What the toxicity guard is tested with is not what it was trained on, and harmful frames have harmless fillings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from training.toxicity_contrasts import contrasts
from training.toxicity_frames import HARMFUL, checks, frames
from training.toxicity_sentences import sentences

FRAMES: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parents[3] / "training" / "toxicity_frames.yaml").read_text(encoding="utf-8")
)
RUN = {"zh": 8}
"""Words, or in Chinese characters, that a sentence to test with may not share in a row with one to train on."""
WORDS = 6


def runs(text: str, language: str) -> Iterator[tuple[str, ...]]:
    parts = re.findall(r"[^\W_]" if language == "zh" else r"\w+", text.lower())
    length = RUN.get(language, WORDS)
    return (tuple(parts[at : at + length]) for at in range(len(parts) - length + 1))


@pytest.fixture(scope="module")
def trained() -> set[tuple[str, ...]]:
    texts = [(one.text, one.language) for one in (*frames(), *sentences())]
    texts += [(text, "en") for text, _ in contrasts()]
    return {run for text, language in texts for run in runs(text, language)}


def test_there_are_enough_sentences_to_test_with() -> None:
    harmless = Counter(one.language for one in checks() if one.kind not in HARMFUL)
    assert len(harmless) >= 6
    assert min(harmless.values()) >= 20
    assert harmless.total() >= 300
    for kind in HARMFUL:
        assert len({one.language for one in checks() if one.kind == kind}) == len(harmless)


def test_each_sentence_to_test_with_is_there_once() -> None:
    assert max(Counter(one.text for one in checks()).values()) == 1


@pytest.mark.parametrize("language", sorted({one.language for one in checks()}))
def test_nothing_to_test_with_is_trained_on(language: str, trained: set[tuple[str, ...]]) -> None:
    shared = [
        one.text
        for one in checks()
        if one.language == language and any(run in trained for run in runs(one.text, language))
    ]
    assert shared == []


def test_a_language_without_training_is_among_the_tests() -> None:
    learned = {one.language for one in (*frames(), *sentences())}
    assert {one.language for one in checks()} - learned == {"it"}


def test_whatever_is_harmful_in_a_frame_has_as_much_harmless_beside_it() -> None:
    for groups in FRAMES.values():
        for group in groups:
            for kind in set(group) - {"frames", "then", "each", "harmless"}:
                assert len(group["harmless"]) * 2 >= len(group[kind]), group["frames"][0]
    harmless = Counter(one.language for one in frames() if not one.labels)
    harmful = Counter(one.language for one in frames() if one.labels)
    assert all(harmless[language] >= harmful[language] for language in FRAMES)


def test_every_language_with_insults_has_trades_and_habits_in_their_frames() -> None:
    insulted = {one.language for one in sentences() if one.labels.get("harassment") == 1}
    assert insulted <= set(FRAMES)
    for language in insulted:
        kinds = {kind for group in FRAMES[language] for kind in group}
        assert {"insult", "despair", "harmless", "then"} <= kinds


def test_frames_are_the_same_each_time() -> None:
    assert [*frames()] == [*frames()]
    assert all("{" not in one.text for one in frames())
