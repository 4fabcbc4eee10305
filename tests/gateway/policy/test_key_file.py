from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import yaml_tree
from gateway.policy.key_file import CannotEdit, added, removed

ENTRY: dict[str, Any] = {"id": "new", "sha256": "0" * 64, "tenant": "default", "models": ["*"]}

BLOCK = """\
# ours
version: 1   # the first
keys:        # who may call
  # the CI's
  - id: ci
    sha256: "11"   # by hand
    models:
      - a
      - b
  - {id: prod, sha256: "22"}

  # the last one
  - id: last
    note: |
      of several
      lines

store: memory  # after it
"""

LAYOUTS = {
    "block": BLOCK,
    "no newline at the end": "keys:\n  - {id: a}",
    "not indented": "keys:\n- id: a\n- id: b\nstore: memory\n",
    "flow": "keys: [{id: a}, {id: b}, {id: c}]  # all\nstore: memory\n",
    "flow over lines": "keys: [\n  {id: a},  # one\n  {id: b},\n]\n",
    "one in flow": "keys: [{id: a}]\n",
    "one in block": "# top\nkeys:  # here\n  # first\n  - id: a\n    models: [x]\n# bottom\nstore: memory\n",
    "windows": "keys:\r\n  - {id: a}\r\n  - {id: b}\r\nstore: memory\r\n",
    "references": "store: {a: ${X:-b}}\nkeys:\n  - {id: a, tenant: ${T}}\n",
}


def plain(text: str) -> Any:
    return (
        yaml.safe_load(text.replace("${", "$(").replace("}}", ")}")) if "${" in text else yaml.safe_load(text)
    )


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_an_added_entry_comes_last_and_all_else_stays(text: str) -> None:
    new = added(text, ENTRY)
    assert plain(new) == {**plain(text), "keys": [*plain(text)["keys"], ENTRY]}
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    assert all(comment in new for comment in comments)


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_each_entry_can_be_removed(text: str) -> None:
    keys = plain(text)["keys"]
    for index in range(len(keys)):
        new = removed(text, index)
        assert plain(new) == {**plain(text), "keys": keys[:index] + keys[index + 1 :]}
        assert all(line in new for line in text.splitlines() if line.strip().startswith("#"))


@pytest.mark.parametrize(
    "text",
    ["", "# nothing yet\n", "version: 1\n", "version: 1", "keys: []\n", "keys: []  # none\nversion: 1\n", "keys:\n",
     "keys:   # none yet\n# more\nversion: 1\n"],
)  # fmt: skip
def test_the_first_entry(text: str) -> None:
    new = added(text, ENTRY)
    assert yaml.safe_load(new) == {**(yaml.safe_load(text) or {}), "keys": [ENTRY]}
    second = {**ENTRY, "id": "second"}
    assert yaml.safe_load(added(new, second))["keys"] == [ENTRY, second]
    assert yaml.safe_load(removed(new, 0))["keys"] == []


@pytest.mark.parametrize(
    "text",
    ["{keys: []}\n", "keys: none\n", "keys: {a: b}\n", "- a\n", "keys: [\n", "keys: []\n---\nkeys: []\n"],
)
def test_what_it_does_not_understand_it_leaves_alone(text: str) -> None:
    with pytest.raises(CannotEdit):
        added(text, ENTRY)


def test_an_entry_that_others_lean_on_is_left_alone() -> None:
    with pytest.raises(CannotEdit):
        removed("keys:\n  - &a {id: a}\n  - {<<: *a, tenant: t}\n", 0)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1))
def test_any_pattern_is_written_so_that_it_is_read_back(pattern: str) -> None:
    text = added("", {**ENTRY, "models": [pattern]})
    tree = yaml_tree.read(text, Path("x"), {"NAME": "no"}, [])
    assert tree is not None and yaml_tree.data(tree)["keys"][0]["models"] == [pattern]


@pytest.mark.parametrize("name", LAYOUTS)
def test_nested_entries_are_written_in_flow_style(name: str) -> None:
    entry = {
        **ENTRY,
        "quotas": {"tokens_per_minute": 1000},
        "budget": {"usd_per_month": 0.00001},
        "tier": "a{b",
    }
    assert plain(added(LAYOUTS[name], entry))["keys"][-1] == entry
