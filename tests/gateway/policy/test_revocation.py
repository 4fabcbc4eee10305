from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.keys import hash_key
from gateway.policy.revocation import revoked
from gateway.policy.schema import Key

HASH = hash_key("a")


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (f"keys: [{{id: a, sha256: {HASH}}}]", False),
        (f"keys: [{{id: renamed, sha256: '{HASH.upper()}', nonsense: 1}}]", False),
        ("keys: [{id: a, sha256: '${HASH}'}]", False),
        ("keys: [{id: a, sha256: '${HASH}'}", False),  # no YAML
        (f"# {HASH}\nkeys: [", False),
        (f"# {HASH}\nkeys: []", True),
        ("keys: []", True),
        ("keys:", True),
        ("keys: 3", True),
        ("nonsense: 1", False),  # whoever revokes the last key leaves an empty list
        ("keys: [", True),
        ("keys: [${", True),
        ("", False),
    ],
)
def test_what_stands_nowhere_is_gone(tmp_path: Path, text: str, gone: bool) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    (tmp_path / "broken.yaml").write_text("version: {")
    key = Key.model_validate({"id": "a", "sha256": HASH})
    assert (revoked(tmp_path, {"HASH": HASH}, [key], [file]) or set()) == ({"a"} if gone else set())


def test_a_hash_of_digits_alone_is_text(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{id: a, sha256: {'7' * 64}}}]")
    key = Key.model_validate({"id": "a", "sha256": "7" * 64})
    assert revoked(tmp_path, {}, [key], [file]) == set()
