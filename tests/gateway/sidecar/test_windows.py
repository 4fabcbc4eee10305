from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sidecar.models.windows import TooLong, refuse_longer, windows


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=80),
    st.integers(4, 20),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_windows_cover_the_text_between_words_and_overlap(
    words: list[int], size: int, overlap: int, width: int
) -> None:
    """Words of so many tokens of ``width`` characters, with a space after each."""
    tokens, numbers, at = [], [], 0
    for number, count in enumerate(words):
        for _ in range(count):
            tokens.append((at, at + width))
            numbers.append(number)
            at += width
        at += 1
    spans = windows(at, tokens, numbers, size=size, overlap=overlap, most=1000)
    assert spans[0][0] == 0
    assert spans[-1][1] == at
    word_starts = {tokens[n][0] for n in range(len(tokens)) if n == 0 or numbers[n] != numbers[n - 1]}
    for start, end in spans:
        inside = [n for n, token in enumerate(tokens) if start <= token[0] and token[1] <= end]
        assert 0 < len(inside) <= size
        if max(words) <= size:
            assert start in word_starts
    for (start, end), (after, later) in pairwise(spans):
        assert start < after <= end + 1
        assert end < later


def test_a_text_that_fits_is_one_window() -> None:
    assert windows(9, [(1, 3), (4, 8)], [0, 1], size=2, overlap=1, most=1) == [(0, 9)]
    assert windows(0, [], [], size=2, overlap=1, most=1) == [(0, 0)]


def test_more_windows_than_the_bound_are_refused() -> None:
    tokens = [(n, n + 1) for n in range(100)]
    words = list(range(100))
    assert len(windows(100, tokens, words, size=10, overlap=0, most=10)) == 10
    with pytest.raises(TooLong, match="the text is too long"):
        windows(100, tokens, words, size=10, overlap=0, most=9)


def test_a_text_that_is_far_too_long_is_refused_unread() -> None:
    refuse_longer("x" * 80, 10, 1)
    with pytest.raises(TooLong):
        refuse_longer("x" * 81, 10, 1)
