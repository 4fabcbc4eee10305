from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.chunks import chunks


@pytest.mark.parametrize(
    ("length", "slack", "spans"),
    [
        (0, 0, [(0, 0)]),
        (10, 0, [(0, 10)]),
        (11, 0, [(0, 10), (7, 11)]),
        (11, 1, [(0, 11)]),
        (17, 0, [(0, 10), (7, 17)]),
        (18, 3, [(0, 10), (7, 17), (14, 18)]),
    ],
)
def test_chunks_overlap_and_the_last_may_be_short(
    length: int, slack: int, spans: list[tuple[int, int]]
) -> None:
    text = "abcdefghijklmnopqrstuvwxyz"[:length]
    assert [*chunks(text, 10, 3, slack=slack)] == [text[start:end] for start, end in spans]


@given(st.integers(0, 400), st.integers(2, 50), st.data())
def test_chunks_leave_nothing_out(length: int, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    text = "".join(map(chr, range(length)))
    seen = 0
    for chunk in chunks(text, size, overlap, slack=data.draw(st.integers(0, 50))):
        start = ord(chunk[0]) if chunk else 0
        assert start == max(seen - overlap, 0)
        seen = start + len(chunk)
    assert seen == length
