"""Keys of a folder that the gateway may not write to, as another user than its owner."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.identity.api_keys import hash_key
from gateway.policy.files import read_files
from gateway.policy.key_store import ISSUED, KeyStore, KeyStoreError
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError
from tests.somebody import as_somebody

POLICY = """\
version: 1
backends: {b: {kind: fake, script: [{reply: hello}]}}
models: {m: {targets: [{backend: b, model: x}]}}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """``policies``, which only its owner may write to, and ``state``, which is anybody's."""
    root = Path(tempfile.mkdtemp(prefix="tollgate-"))
    root.chmod(0o755)
    (root / "state").mkdir()
    (root / "state").chmod(0o777)
    policies = root / "policies"
    policies.mkdir()
    (policies / "gateway.yaml").write_text(POLICY)
    (policies / "gateway.yaml").chmod(0o644)
    (policies / "keys.yaml").write_text(yaml.safe_dump({"keys": [entry("theirs")]}))
    (policies / "keys.yaml").chmod(0o644)
    (policies / "more.yaml").write_text(yaml.safe_dump({"keys": [entry("more")]}))
    (policies / "more.yaml").chmod(0o444)
    policies.chmod(0o555)
    yield root
    policies.chmod(0o755)
    shutil.rmtree(root)


def entry(id: str) -> dict[str, object]:
    return {"id": id, "sha256": hash_key(id), "models": ["*"]}


def book(folder: Path) -> KeyStore:
    return KeyStore(folder / "policies", folder / "state" / ISSUED, {})


def in_force(folder: Path) -> set[str]:
    loaded = load_policy(folder / "policies", {}, also=[folder / "state" / ISSUED])
    return {key.id for key in loaded.policy.keys_in_force}


def test_what_the_folder_does_not_take_is_kept_beside_it(folder: Path) -> None:
    before = read_files(folder / "policies")
    as_somebody(lambda: book(folder).add(entry("ours")))
    assert in_force(folder) == {"theirs", "more", "ours"}
    issued = folder / "state" / ISSUED
    assert issued.stat().st_mode & 0o777 == 0o600
    as_somebody(lambda: book(folder).revoke("ours"))
    assert in_force(folder) == {"theirs", "more"} and hash_key("ours") not in issued.read_text()
    assert read_files(folder / "policies") == before


@pytest.mark.parametrize("id", ["theirs", "more"])
def test_a_key_of_the_folder_is_revoked_beside_it(folder: Path, id: str) -> None:
    as_somebody(lambda: book(folder).revoke(id))
    assert in_force(folder) == {"theirs", "more"} - {id}

    def again() -> None:
        with pytest.raises(KeyStoreError, match=f"no key has the id '{id}'"):
            book(folder).revoke(id)
        with pytest.raises(KeyStoreError, match="there is a key with the id"):
            book(folder).add(entry(id))

    as_somebody(again)


def test_without_a_place_of_ones_own_it_is_said(folder: Path) -> None:
    def attempt() -> None:
        own = KeyStore(folder / "policies", None, {})
        with pytest.raises(OSError) as caught:
            own.add(entry("ours"))
        assert isinstance(caught.value, PermissionError)
        with pytest.raises(KeyStoreError, match="remove this entry by hand"):
            own.revoke("more")

    as_somebody(attempt)


def test_a_file_that_cannot_be_read_is_no_empty_one(folder: Path) -> None:
    (folder / "policies" / "keys.yaml").chmod(0o000)

    def attempt() -> None:
        with pytest.raises(PolicyError, match=r"keys\.yaml:1: cannot be read: Permission denied"):
            book(folder).add(entry("theirs"))

    as_somebody(attempt)


@pytest.mark.parametrize(("beside", "made"), [(0o644, 0o644), (0o640, 0o640), (0o600, 0o600), (0o666, 0o644)])
def test_whoever_may_read_the_policy_may_read_its_keys(tmp_path: Path, beside: int, made: int) -> None:
    (tmp_path / "gateway.yaml").write_text(POLICY)
    (tmp_path / "gateway.yaml").chmod(beside)
    file = KeyStore(tmp_path, None, {}).add(entry("a"))
    assert file.stat().st_mode & 0o777 == made
    file.chmod(0o640)  # by hand
    KeyStore(tmp_path, None, {}).add(entry("b"))
    assert file.stat().st_mode & 0o777 == 0o640
