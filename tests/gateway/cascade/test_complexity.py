from __future__ import annotations

import math
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cascade.complexity import CONTEXT, WEIGHTS, ComplexityClassifier, Weights, quantile
from gateway.cascade.features import SHAPE
from gateway.types import ChatRequest

NOTHING = [0.0] * len(SHAPE)
ANYTHING = [9.0] * len(SHAPE)
EASY = "Which of these animals is a mammal?\nA. Trout\nB. Eagle\nC. Whale\nD. Frog\nAnswer:"
HARD = "Janet pays 35% tax on the $1,200 she earns in 3 weeks. How much is left after 7 weeks if she spends $4 a day?"


@pytest.fixture(scope="module")
def classifier() -> ComplexityClassifier:
    return ComplexityClassifier.load()


def weights(
    words: dict[str, float], shape: list[float], quantiles: list[float], bias: float = 0.0
) -> Weights:
    return Weights(words, shape, low=NOTHING, high=ANYTHING, bias=bias, quantiles=quantiles)


def test_a_word_counts_once_and_the_more_words_the_less_each() -> None:
    classifier = ComplexityClassifier(weights({"hard": 2.0, "easy": -1.0}, NOTHING, [-1.0, 3.0], 0.5))
    assert classifier.log_odds("", 0) == 0.5
    assert classifier.log_odds("unknown", 7) == 0.5
    assert classifier.log_odds("hard hard", 9) == 2.5
    assert classifier.log_odds("Hard, easy", 10) == pytest.approx(0.5 + 1 / math.sqrt(2))
    assert classifier.score("hard", 4) == (2.5 + 1) / 4


def test_shape_counts_within_what_training_saw() -> None:
    classifier = ComplexityClassifier(weights({}, [1.0, *NOTHING[1:]], [0.0, 1.0]))
    assert classifier.log_odds("a" * 99, 99) == pytest.approx(math.log(100))
    assert classifier.log_odds("a" * 100_000, 100_000) == ANYTHING[0]


def test_context_makes_a_question_harder() -> None:
    classifier = ComplexityClassifier(weights({}, NOTHING, [0.0, 1.0]))
    assert classifier.log_odds("abc", 3) == 0
    assert classifier.log_odds("abc", 1003) == pytest.approx(CONTEXT * math.log(2))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-2, 0), (-1, 0), (0, 0.25), (1, 0.5), (2, 0.75), (3, 1), (4, 1)],
)
def test_quantiles_are_interpolated(value: float, expected: float) -> None:
    assert quantile(value, [-1, 1, 3]) == expected


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20).map(sorted), st.floats(-9, 9), st.floats(-9, 9))
def test_quantiles_never_fall(knots: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= quantile(low, knots) <= quantile(high, knots) <= 1


def test_the_weights_are_small_and_whole() -> None:
    assert WEIGHTS.stat().st_size < 300_000
    weights = Weights(**orjson.loads(WEIGHTS.read_bytes()))
    assert len(weights.shape) == len(weights.low) == len(weights.high) == len(SHAPE)
    assert all(low <= high for low, high in zip(weights.low, weights.high, strict=True))
    assert len(weights.quantiles) == 101
    assert list(weights.quantiles) == sorted(set(weights.quantiles))
    assert all(map(math.isfinite, [*weights.words.values(), *weights.shape, weights.bias]))


def test_what_looks_hard_scores_higher(classifier: ComplexityClassifier) -> None:
    easy, hard = classifier.score(EASY, len(EASY)), classifier.score(HARD, len(HARD))
    assert easy < 0.4 < 0.7 < hard


@pytest.mark.anyio
async def test_a_request_is_scored_by_its_last_question(classifier: ComplexityClassifier) -> None:
    def asked(*texts: str) -> ChatRequest:
        return ChatRequest(model="m", messages=tuple({"role": "user", "content": text} for text in texts))

    assert await classifier.complexity(asked(EASY)) == classifier.score(EASY, len(EASY))
    within = await classifier.complexity(asked(HARD, EASY))
    assert within == classifier.score(EASY, len(EASY) + len(HARD)) > classifier.score(EASY, len(EASY))


@given(text=st.text(max_size=300), length=st.integers(0, 10**7))
def test_every_text_has_a_score(classifier: ComplexityClassifier, text: str, length: int) -> None:
    assert 0 <= classifier.score(text, length) <= 1


def test_a_file_that_is_no_weights_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text("{")
    with pytest.raises(ValueError, match="end of data"):
        ComplexityClassifier.load(tmp_path / "w.json")
    with pytest.raises(OSError, match="missing"):
        ComplexityClassifier.load(tmp_path / "missing.json")
