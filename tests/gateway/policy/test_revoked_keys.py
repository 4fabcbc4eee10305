from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.identity.api_keys import hash_key
from gateway.policy import revoked_keys
from gateway.policy.files import PolicyFile
from gateway.policy.revoked_keys import RevocationTracker, RevokedKeys
from gateway.policy.schema import Key

HASH = hash_key("a")
KEY = Key.model_validate({"id": "a", "sha256": HASH})
GONE, UNSURE = frozenset({"a"}), frozenset({"a"})


def file(text: str | None, name: str = "keys.yaml", problem: str = "") -> PolicyFile:
    return PolicyFile(Path(name), None if text is None else text.encode(), problem)


BEFORE = file(f"keys: [{{id: a, sha256: {HASH}}}]")
MIXED = file(f"version: 1\nmodels: {{}}\nkeys: [{{id: a, sha256: {HASH}}}]")


def of(
    *files: PolicyFile, before: PolicyFile = BEFORE, unsettled: tuple[PolicyFile, ...] = ()
) -> RevokedKeys:
    return RevocationTracker({"HASH": HASH}).of([KEY], [before], files, unsettled)


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (f"keys: [{{id: a, sha256: {HASH}}}]", False),
        (f"keys: [{{id: renamed, sha256: '{HASH.upper()}', nonsense: 1}}]", False),
        ("keys: [{id: a, sha256: '${HASH}'}]", False),
        ("keys: [{id: a, sha256: '${HASH}'}", False),  # no YAML
        (f"# {HASH}\nkeys: [", False),
        (f"# {HASH}\nkeys: []", True),
        (f"keys: [{{id: a, sha256: {HASH}}}]\nrevoked_keys: ['{HASH.upper()}']", True),
        ("keys: []", True),
        ("keys:", True),
        ("keys: 3", True),
        ("keys: [", True),
        ("keys: [${", True),
    ],
)
def test_what_stands_nowhere_is_gone(text: str, gone: bool) -> None:
    broken = file("version: {", "broken.yaml")
    assert of(file(text), broken) == RevokedKeys(gone=GONE if gone else frozenset())


def test_a_file_is_parsed_once_whatever_it_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 30,000 keys each time is a second, in which a revoked key is let in."""
    parsed: list[bytes] = []
    real = revoked_keys._file_keys

    def counting(path: Path, content: bytes, env: Mapping[str, str]) -> object:
        parsed.append(content)
        return real(path, content, env)

    monkeypatch.setattr(revoked_keys, "_file_keys", counting)
    standing, after, now = RevocationTracker({}), file("keys: []"), file("keys: []\n# half")
    for _ in range(3):
        standing.of([KEY], [BEFORE], [BEFORE])
        standing.of([KEY], [BEFORE], [after], [now])
    assert sorted(map(len, parsed)) == sorted(len(one.content or b"") for one in (BEFORE, after, now))


@pytest.mark.parametrize("text", ["", "nonsense: 1", "# nothing", "models: [", "version: ${"])
def test_an_edit_that_goes_wrong_is_no_revocation(text: str) -> None:
    """But a file of keys alone that has lost its list is no file of keys any more."""
    assert of(file(text), before=MIXED) == RevokedKeys()
    assert of(file(text), before=BEFORE) == RevokedKeys(unverified=UNSURE, unreadable_files=("keys.yaml",))


def test_a_file_of_more_than_keys_that_vanishes_takes_them_with_it() -> None:
    other = file("version: {", "other.yaml")
    assert of(other, before=MIXED) == of(other) == RevokedKeys(gone=GONE)
    assert of(file(None), before=MIXED).unverified == UNSURE


def test_a_hash_of_digits_alone_is_text() -> None:
    text = f"keys: [{{id: a, sha256: {'7' * 64}}}]"
    key = Key.model_validate({"id": "a", "sha256": "7" * 64})
    assert RevocationTracker({}).of([key], [file(text)], [file(text)]) == RevokedKeys()


def test_what_may_stand_in_a_file_that_cannot_be_read_is_unsure() -> None:
    locked = file(None, "locked.yaml", "cannot be read: Permission denied")
    assert of(locked) == RevokedKeys(unverified=UNSURE, unreadable_files=("locked.yaml",))
    assert of(locked, file("keys: []")) == RevokedKeys(unverified=UNSURE, unreadable_files=("locked.yaml",))
    assert of(locked, file(f"keys: [{{sha256: {HASH}}}]")) == RevokedKeys(unreadable_files=("locked.yaml",))
    # A revoked_keys that can be read is one.
    assert of(locked, file(f"revoked_keys: ['{HASH}']")).gone == GONE
    assert of() == RevokedKeys(unverified=UNSURE)


def test_a_file_that_never_stands_still_keeps_no_key_alive() -> None:
    whole, half = file(f"keys: [{{sha256: {HASH}}}]"), file("keys:")
    assert of(whole, unsettled=(half,)) == RevokedKeys(unverified=UNSURE)
    assert of(whole, unsettled=(file(None),)) == RevokedKeys(unverified=UNSURE)
    assert of(whole, unsettled=(file("models: [", "other.yaml"),)) == RevokedKeys()
    assert of(half, unsettled=(whole,)) == RevokedKeys(gone=GONE)


def test_only_what_has_changed_is_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A revocation does not wait for a large file beside it to be read."""
    parsed: list[str] = []
    real = revoked_keys._file_keys
    monkeypatch.setattr(
        revoked_keys, "_file_keys", lambda path, *rest: (parsed.append(path.name), real(path, *rest))[1]
    )
    standing, large = RevocationTracker({}), file("models: {}", "large.yaml")
    for text, more in (
        ("keys: []", ["keys.yaml", "large.yaml"]),
        ("keys: []", []),
        ("keys: ", ["keys.yaml"]),
    ):
        parsed.clear()
        standing.of([KEY], [], [file(text), large])
        assert sorted(set(parsed)) == more


def test_what_is_appended_to_a_table_is_found() -> None:
    """In one that is extended, rewritten, and cut short."""
    text = "".join(
        f'{{"id": "{name}", "sha256": "{hash_}"}}\n' for name, hash_ in (("a", "a" * 64), ("b", "b" * 64))
    )
    keys = [Key(id=name, sha256=name * 64) for name in "ab"]
    tracker, first = RevocationTracker({}), file(text, "keys.jsonl")
    assert tracker.of(keys, [first], [first]) == RevokedKeys()
    for edit, gone in (
        (text + json.dumps({"revoked": "a" * 64}) + "\n", "a"),
        (text + "\n", ""),
        (text.splitlines(keepends=True)[0], "b"),
        (text.splitlines(keepends=True)[1], "a"),
    ):
        now = file(edit, "keys.jsonl")
        assert tracker.of(keys, [first], [now]) == RevokedKeys(gone=frozenset(gone)), edit
