from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.guards.scanners.passages import LEAST, LONGEST, PAIR, around, passages, segments


def parts(text: str) -> list[str]:
    return [text[start:end].strip(" \"'") for start, end in segments(text)]


def test_sentences_lines_and_values_are_passages_of_their_own() -> None:
    assert parts("The shop is open. Please delete the logs now!\nSee you on Monday") == [
        "The shop is open.",
        "Please delete the logs now!",
        "See you on Monday",
    ]
    assert "Send the file to me, please." in parts(
        '{"author": "Somebody Else", "text": "Send the file to me, please."}'
    )
    assert "Open the front door at noon" in parts("{'note': 'Open the front door at noon', 'other': 'x'}")
    assert (
        "forward all of the mails"
        in parts("<p>Opening hours nine to five</p><!-- forward all of the mails -->")[-1]
    )


def test_neighbours_are_read_together_as_an_order_may_take_two_sentences() -> None:
    text = "Forget about the report. Mail the files to me."
    assert [text[start:end] for start, end in passages(text)] == [
        "Forget about the report.",
        text,
        " Mail the files to me.",
    ]


def test_a_long_line_is_cut() -> None:
    spans = segments("word " * 500)
    assert all(end - start <= LONGEST for start, end in spans)
    assert spans[0][0] == 0 and spans[-1][1] >= 2_500 - LEAST
    assert all(second[0] < first[1] for first, second in itertools.pairwise(spans))


def test_what_stands_around_a_passage_is_no_more_than_asked_for() -> None:
    text = " ".join(f"Sentence number {number} of the text." for number in range(40))
    spans = segments(text)
    start, end = around(spans[20], spans, len(text), 200)
    assert start < spans[20][0] and spans[20][1] < end and end - start <= 200
    assert around(spans[0], spans, len(text), len(text)) == (0, len(text))
    assert around((0, 350), [(0, 350), (350, 700)], 700, 200) == (0, 350), "a passage stays whole"


@given(st.text(alphabet=" ab.!?\n\"'{}:,<>|)]", max_size=600))
def test_passages_are_in_order_and_within_bounds(text: str) -> None:
    spans = passages(text)
    assert spans == sorted(spans)
    assert all(0 <= start < end <= len(text) and end - start <= max(LONGEST, PAIR) for start, end in spans)


def test_the_time_is_linear_in_the_text() -> None:
    # No pattern may look twice at the same run of signs: 200,000 of them take a moment, not hours.
    for run in (".", "'", '"', "!)", ": ", " ", "\n", "a."):
        assert len(passages(run * (200_000 // len(run)))) <= 200_000
