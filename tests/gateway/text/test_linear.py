"""The linear model, and the scores of two of the models that are built on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cascade.complexity import ComplexityClassifier
from gateway.guards.scanners.toxicity import weights
from gateway.text.linear import LinearModel, Measures, log_odds, probability

RECORDED = orjson.loads(Path(__file__).with_name("recorded_scores.json").read_bytes())
"""Scores of both as each was before it was built on ``LinearModel``, with the shipped weights."""


@pytest.fixture(scope="module")
def complexity() -> ComplexityClassifier:
    return ComplexityClassifier.load()


def test_log_odds_are_bias_and_weights_of_the_features_that_are_there() -> None:
    model = LinearModel(
        [1.0, -1.0], {"a": (2.0, 0.0), "b": (0.5, 4.0)}, lambda features, known: features * known
    )
    assert model.log_odds({"a", "b", "c"}) == [1.0 + 2.5 / 6, -1.0 + 4.0 / 6]
    assert model.log_odds({"c"}) == model.log_odds(set()) == [1.0, -1.0]


def test_columns_are_the_same_as_rows() -> None:
    rows = LinearModel([0.0, 0.0], {"a": (2.0, 0.0), "b": (0.5, 4.0)})
    columns = LinearModel.of_columns([0.0, 0.0], [{"a": 2.0, "b": 0.5}, {"b": 4.0}])
    for features in ({"a"}, {"b"}, {"a", "b"}):
        assert rows.log_odds(features) == columns.log_odds(features)


def test_measures_count_no_further_than_training_saw() -> None:
    measures = Measures([1.0, 10.0], [0.0, 0.0], [1.0, 2.0])
    assert measures.total([5.0, -3.0]) == 1.0
    assert measures.total([0.5, 1.5]) == 15.5


@pytest.mark.parametrize("odds", [-1e6, -40.0, -1.0, 0.0, 2.5, 1e6])
def test_probability_and_log_odds_undo_each_other(odds: float) -> None:
    assert 0 <= probability(odds) <= 1
    assert log_odds(probability(odds), 1e-9) == pytest.approx(max(min(odds, 20.7), -20.7), abs=0.03)


@pytest.mark.parametrize(
    "each", RECORDED, ids=[f"{len(each['text'])}-{at}" for at, each in enumerate(RECORDED)]
)
def test_scores_are_as_recorded(each: dict[str, Any], complexity: ComplexityClassifier) -> None:
    text = each["text"]
    assert weights().fast.log_odds(text) == each["toxicity"]
    assert complexity.log_odds(text, len(text) + 700) == each["complexity"]
