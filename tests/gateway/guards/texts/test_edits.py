from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.guards.texts.arguments import leaf_spans, rewritten
from gateway.guards.texts.edits import Edit, JsonCursor, Offsets, applied, merged
from gateway.guards.texts.paths import put
from gateway.guards.texts.request_texts import RequestText
from tests.examples import examples

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=8)


def edits(spans: list[tuple[int, int]]) -> list[Edit]:
    return [Edit(start, start + size, f"l{size}", size) for start, size in spans]


@given(SPANS)
def test_merged_edits_cover_the_same_and_do_not_overlap(spans: list[tuple[int, int]]) -> None:
    whole = merged(edits(spans))
    covered = {place for start, size in spans for place in range(start, start + size)}
    assert {place for edit in whole for place in range(edit.start, edit.end)} == covered
    assert all(one.end <= two.start for one, two in pairwise(whole))


def test_the_longest_gives_the_name() -> None:
    assert merged([Edit(0, 3, "a", 3), Edit(2, 9, "b", 7), Edit(8, 10, "c", 2)]) == [Edit(0, 10, "b", 7)]
    assert merged([Edit(0, 3, "a", 3), Edit(3, 9, "b", 6)]) == [Edit(0, 3, "a", 3), Edit(3, 9, "b", 6)]


@given(SPANS, st.integers(0, 45))
def test_offsets_follow_replacements(spans: list[tuple[int, int]], place: int) -> None:
    text = "".join(chr(0x4E00 + i) for i in range(45))
    whole = merged(edits(spans))
    offsets = Offsets()
    for edit in whole:
        offsets.replace(edit.start, edit.end, 2)
    after = applied(text, whole, ["[]"] * len(whole))
    hit = next((edit for edit in whole if edit.start < place < edit.end), None)
    if place < 45 and hit is None and not any(edit.start == place for edit in whole):
        assert after[offsets.of(place)] == text[place]
    elif hit is not None:
        assert after[offsets.of(place) :].startswith("[]")


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\\n\u00e9\u2028/{,:😀é', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(alphabet='k"\\\t', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(500))
@given(VALUES, st.booleans(), st.integers(0, 60), st.integers(1, 12), st.integers(1, 9))
def test_json_stays_json_whatever_part_of_a_string_is_cut(
    value: Any, ascii_only: bool, start: int, size: int, piece: int
) -> None:
    text = json.dumps({"first": value, "last": "some words"}, ensure_ascii=ascii_only)
    end = min(start + size, len(text))
    # Numbers and literals are words of their own: guards find them whole or not at all.
    inside = all(_in_string(text, at) for at in range(start, end))
    if not inside or start >= end:
        return
    out = text[:start]
    place = JsonCursor()
    for at in range(0, start, piece):
        place.pass_over(text[at : min(at + piece, start)])
    for at in range(start, end, piece):
        out += place.cut(text[at : min(at + piece, end)], "[X]" if at == start else "")
    out += place.pass_over(text[end:])
    assert "[X]" in out
    json.loads(out)


def _in_string(text: str, at: int) -> bool:
    inside = escaped = False
    for character in text[:at]:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            inside = not inside
    return inside and (escaped or text[at] != '"')


@given(VALUES)
def test_arguments_are_written_back_as_they_were(value: Any) -> None:
    assert json.loads(rewritten(value, {})) == value
    assert len(leaf_spans(value)) == len([*leaf_spans(value)])


def test_put_copies_only_what_lies_on_the_path() -> None:
    tree = {"a": ({"b": 1}, {"c": [1, 2]}), "d": {}}
    fresh = put(tree, ("a", 1, "c", 0), 9)
    assert fresh == {"a": ({"b": 1}, {"c": [9, 2]}), "d": {}}
    assert tree == {"a": ({"b": 1}, {"c": [1, 2]}), "d": {}}
    assert fresh["d"] is tree["d"]
    assert RequestText(("a",), "x", "user").kind == "text"
