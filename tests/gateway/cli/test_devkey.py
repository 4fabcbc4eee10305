from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gateway.cli.devkey import development_key


def test_it_is_made_once_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
    state = tmp_path / "state" / "dir"
    first = development_key(state, {})
    assert re.fullmatch(r"tg-\S{43}", first.key)
    assert (state / "dev-key").read_text() == first.key + "\n"
    assert (state / "dev-key").stat().st_mode & 0o777 == 0o600
    assert development_key(state, {}) == first
    assert [path.name for path in state.iterdir()] == ["dev-key"]


def test_the_environment_comes_first(tmp_path: Path) -> None:
    assert development_key(tmp_path / "state", {"TOLLGATE_DEV_KEY": "mine"}) == ("mine", "TOLLGATE_DEV_KEY")
    assert not (tmp_path / "state").exists()
    assert development_key(tmp_path, {"TOLLGATE_DEV_KEY": " "}).key.startswith("tg-")


def test_an_empty_file_gets_a_key_and_an_open_one_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "dev-key"
    file.touch()
    key = development_key(tmp_path, {}).key
    file.chmod(0o644)
    assert development_key(tmp_path, {}).key == key
    assert file.stat().st_mode & 0o777 == 0o600


def test_where_nothing_can_be_written_it_is_for_this_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = development_key(tmp_path / "file", {})
    assert found.key.startswith("tg-") and "for this run only" in found.source


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "for this run only" in development_key(tmp_path, {}).source
