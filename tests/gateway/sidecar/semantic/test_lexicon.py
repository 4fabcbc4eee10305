"""The file of word lists: what is shipped, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.sidecar.semantic.lexicon import SHIPPED, Lexicon, groups_of, lexicon


def test_the_shipped_lists_are_ready_for_look_up() -> None:
    words = lexicon()
    assert words is lexicon()
    assert "the" in words.function
    assert words.units["kg"] == words.units["kilos"] == "kilogram"
    assert words.currencies <= set(words.units.values())
    assert words.ordinals["thirtieth"] == words.tens["thirty"] == 30
    assert "hot" in words.opposites_by_stem["cold"]
    assert groups_of(["feb", "and", "february"], words.dates) == {"february"}


@pytest.mark.parametrize(
    "change",
    [
        {"functions": ["a"]},
        {"function": None},
        {"function": "a an the"},
        {"synonyms": ["buy purchase", ""]},
        {"synonyms": [1]},
        {"tens": {"twenty": "xx"}},
        {"tens": ["twenty"]},
        {"aliases": {"u.s.": 1}},
        {"opposites": ["hot warm"]},
        {"measured": {"old": 3}},
    ],
    ids=lambda change: str(change)[1:24],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    lists = orjson.loads(SHIPPED.read_bytes()) | change
    path = tmp_path / "lexicon.json"
    path.write_bytes(orjson.dumps({name: value for name, value in lists.items() if value is not None}))
    with pytest.raises(ValueError, match=r"lexicon\.json: .*(functions?\b|malformed)"):
        Lexicon.load(path)


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.json"
    path.write_bytes(b"[]")
    with pytest.raises(ValueError, match="missing or unknown"):
        Lexicon.load(path)
