"""Keys as JSON lines, beside the YAML files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.policy import key_table, yaml_tree
from gateway.policy.files import TABLE, PolicyFile
from gateway.policy.key_store import FEW, ISSUED, KeyStore, KeyStoreError, entries
from gateway.policy.key_table import KeyTableReader, hashes_of
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError, Problem

POLICY = """\
version: 1
backends: {one: {kind: fake, script: [{reply: hi}]}}
models: {m: {aliases: [a], targets: [{backend: one, model: x}]}}
tiers: {pro: {}}
"""


def line(id: str, number: int, **more: Any) -> str:
    return json.dumps({"id": id, "sha256": f"{number:064x}", **more}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gateway.yaml").write_text(POLICY)
    return tmp_path


def ids(folder: Path) -> list[str]:
    return [key.id for key in load_policy(folder, {}).policy.keys_in_force]


def problems(folder: Path) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_policy(folder, {})
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_keys_of_the_table_join_those_of_the_yaml_files(folder: Path) -> None:
    (folder / "keys.yaml").write_text(f"keys: [{{id: y, sha256: '{99:064x}'}}]")
    (folder / TABLE).write_text(line("a", 1, models=["m", "gpt-*"], tier="pro") + "\n" + line("b", 2))
    assert ids(folder) == ["y", "a", "b"]
    loaded = load_policy(folder, {})
    (folder / TABLE).write_text(line("b", 2))
    assert load_policy(folder, {}).fingerprint != loaded.fingerprint


def test_a_revoked_key_counts_no_more_and_leaves_its_name(folder: Path) -> None:
    revoked = json.dumps({"revoked": f"{1:064x}"}) + "\n"
    (folder / TABLE).write_text(line("a", 1) + line("b", 2) + revoked + line("a", 3))
    assert ids(folder) == ["b", "a"]
    (folder / "keys.yaml").write_text(f"keys: [{{id: y, sha256: '{1:064x}'}}]")
    assert ids(folder) == ["b", "a"], "wherever it is"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "keys.jsonl:2: not valid JSON: EOF while parsing"),
        ('{"id": "b"}', "keys.jsonl:2: sha256: is required, and missing"),
        (line("b", 2, tenent="x"), "keys.jsonl:2: tenent: unknown key; did you mean 'tenant'?"),
        (line("b", 2, models=["n"]), "keys.jsonl:2: models: no model is named 'n'"),
        (line("b", 2, tier="prof"), "keys.jsonl:2: tier: no tier is named 'prof'; did you mean 'pro'?"),
        (line("a", 2), "keys.jsonl:2: id: two keys have this id; each needs its own (the other is at"),
        (line("y", 2), "keys.jsonl:2: id: two keys have this id; each needs its own (the other is at"),
        (line("b", 99), "keys.jsonl:2: sha256: two keys have this hash; each needs its own"),
        ('{"revoked": "x"}', "keys.jsonl:2: revoked:"),
    ],
    ids=["json", "missing", "unknown", "model", "tier", "twice", "in-yaml", "hash", "revoked"],
)
def test_what_is_wrong_is_reported_with_its_line(folder: Path, text: str, problem: str) -> None:
    (folder / "keys.yaml").write_text(f"keys: [{{id: y, sha256: '{99:064x}'}}]")
    (folder / TABLE).write_text(line("a", 1) + text)
    (only,) = problems(folder)
    assert only.startswith(problem), only


@pytest.mark.parametrize(
    ("edit", "parsed"),
    [
        (lambda text: text + line("new", 7), 1),
        (lambda text: line("new", 7) + text, 1),
        (lambda text: text.replace(line("b", 2), ""), 0),
        (lambda text: text.replace('"b"', '"c"'), 1),
        (lambda text: text, 0),
    ],
    ids=["appended", "in-front", "removed", "changed", "same"],
)
def test_only_lines_that_changed_are_parsed(
    monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str], parsed: int
) -> None:
    text = line("a", 1) + line("b", 2) + line("c", 3)
    found: list[Problem] = []
    reader, path = KeyTableReader(), Path(TABLE)
    reader.read(PolicyFile(path, text.encode()), found)
    real, calls = key_table._parsed, list[bytes]()
    monkeypatch.setattr(key_table, "_parsed", lambda one: (calls.append(one), real(one))[1])
    again = reader.read(PolicyFile(path, edit(text).encode()), found)
    assert again == KeyTableReader().read(PolicyFile(path, edit(text).encode()), found)
    assert len(calls) == parsed + len(again.lines) and not found


def test_hashes_are_found_in_a_table_that_is_broken() -> None:
    text = line("a", 1) + '{"id": "b", "sha256": "' + "\n" + json.dumps({"revoked": f"{3:064x}"})
    assert hashes_of(text.encode()) == ({f"{1:064x}"}, {f"{3:064x}"})


def test_keys_beyond_a_few_hundred_go_into_the_table(folder: Path) -> None:
    rows = "".join(f"  - {{id: k{n}, sha256: '{n:064x}'}}\n" for n in range(FEW - 1))
    (folder / "keys.yaml").write_text("keys:\n" + rows)
    store = KeyStore(folder, None, {})
    entry = {"tenant": "default", "models": ["*"]}
    files = [
        store.add({"id": name, "sha256": f"{number:064x}", **entry}).name
        for name, number in (("last", 1000), ("first", 1001), ("second", 1002))
    ]
    assert files == ["keys.yaml", TABLE, TABLE]
    assert ids(folder)[-3:] == ["last", "first", "second"]
    with pytest.raises(KeyStoreError, match=f"{TABLE}:1: there is a key with the id 'first' already"):
        store.add({"id": "first", "sha256": f"{1003:064x}", **entry})
    assert store.revoke("first") == (f"{1001:064x}", folder / TABLE, FEW + 1, "")
    assert ids(folder)[-2:] == ["last", "second"]
    assert [one.text("id") for one in entries(store.read())][-2:] == ["last", "second"]
    store.add({"id": "first", "sha256": f"{1003:064x}", **entry})
    assert ids(folder)[-1] == "first"


def test_a_line_without_its_end_is_not_continued(folder: Path) -> None:
    (folder / TABLE).write_text(line("a", 1).rstrip("\n"))
    KeyStore(folder, None, {}).add({"id": "b", "sha256": f"{2:064x}", "models": ["*"]})
    assert ids(folder) == ["a", "b"]


def test_a_new_table_is_as_readable_as_the_policy(folder: Path) -> None:
    """The gateway may run as another user than who makes its keys."""
    (folder / "gateway.yaml").chmod(0o644)
    before = os.umask(0o077)
    try:
        key_table.append(
            folder / TABLE, json.loads(line("a", 1)), mode=KeyStore(folder, None, {})._mode(folder / TABLE)
        )
    finally:
        os.umask(before)
    assert (folder / TABLE).stat().st_mode & 0o777 == 0o644


def test_a_read_only_folder_has_its_table_in_the_state_folder(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "issued-keys.jsonl").write_text(line("a", 1))
    store = KeyStore(folder, state / ISSUED, {})
    assert [one.text("id") for one in entries(store.read())] == ["a"]


def test_values_that_are_written_are_not_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound on values, meant for aliases, refused more than 41,667 keys."""
    monkeypatch.setattr(yaml_tree, "MAX_VALUES", 100)
    rows = "".join(f"- {{id: k{n}, sha256: '{n:064x}', tenant: t, models: [m]}}\n" for n in range(50))
    (folder / "keys.yaml").write_text("keys:\n" + rows)
    assert len(ids(folder)) == 50


def test_limits_of_a_key_in_the_table_change_as_often_as_one_likes(folder: Path, tmp_path: Path) -> None:
    (folder / TABLE).write_text(line("a", 1) + line("b", 2))
    store = KeyStore(folder, tmp_path / "state" / ISSUED, {})
    for limit in (5, 6):
        assert store.change("a", {"quotas": {"requests_per_minute": limit}}).file == folder / TABLE
        [key] = [key for key in load_policy(folder, {}).policy.keys_in_force if key.id == "a"]
        assert (key.quotas.requests_per_minute, key.sha256) == (limit, f"{1:064x}")
    assert sorted(ids(folder)) == ["a", "b"]
    store.revoke("a")
    assert ids(folder) == ["b"]


def test_expired_keys_are_told_by_their_lines_and_many_as_a_number(folder: Path) -> None:
    def told() -> list[str]:
        return [str(one).removeprefix(f"{folder}/") for one in load_policy(folder, {}).warnings]

    revoked = json.dumps({"revoked": f"{3:064x}"}) + "\n"
    old = {"expires": "2020-01-01"}
    (folder / TABLE).write_text(
        line("a", 1, expires="2999-01-01") + line("b", 2, **old) + line("c", 3, **old) + revoked
    )
    [warning] = told()
    assert warning.startswith(f"{TABLE}:2: the key 'b' expired on 2020-01-01")
    (folder / TABLE).write_text("".join(line(f"k{number}", number, **old) for number in range(1, 36)))
    *each, rest = told()
    assert len(each) == key_table.MOST_TOLD
    assert rest == f"{TABLE}:11: 25 more keys of this file have expired"
