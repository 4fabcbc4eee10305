"""Who may change adapters, and from where: nobody without the token, and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.adapter_files import CONFIG, WEIGHTS
from engine.errors import Forbidden, InvalidRequest, StartupError, Unauthorized
from engine.server.adapter_access import AdapterAccess, read_token

TOKEN = b"0123456789abcdef"


def adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("{}")
    (folder / WEIGHTS).write_bytes(b"")
    return folder


def test_a_token_comes_of_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
    given = {"TOLLGATE_ADAPTER_TOKEN": "fedcba9876543210"}
    assert read_token(file, given) == TOKEN
    assert read_token(None, given) == b"fedcba9876543210"
    assert read_token(None, {}) is None
    for bad in (b"short", b"with a space in it", "ünïcödé-ünïcödé".encode(), b""):
        file.write_bytes(bad)
        with pytest.raises(StartupError, match="16 or more"):
            read_token(file, {})
    with pytest.raises(StartupError, match="cannot be read"):
        read_token(tmp_path / "none", {})


def test_nobody_changes_adapters_without_the_token() -> None:
    access = AdapterAccess(TOKEN)
    for right in (b"Bearer " + TOKEN, b"bearer  " + TOKEN):
        access.check({b"authorization": right})
    for wrong in (b"", b"Bearer", b"Bearer ", TOKEN, b"Basic " + TOKEN, b"Bearer " + TOKEN[:-1]):
        with pytest.raises(Unauthorized):
            access.check({b"authorization": wrong})
    with pytest.raises(Unauthorized):
        access.check({})
    for given in (b"", b"Bearer ", b"Bearer None"):
        with pytest.raises(Forbidden, match="--adapter-token-file"):
            AdapterAccess(None).check({b"authorization": given})


def test_folders_are_those_within_and_links_do_not_lead_out(tmp_path: Path) -> None:
    home, other, outside = tmp_path / "home", tmp_path / "other", adapter(tmp_path / "outside")
    one, two = adapter(home / "one"), adapter(other / "deep" / "two")
    access = AdapterAccess(TOKEN, (home, other))
    assert access.home == home
    assert access.find(str(one)) == access.find("one") == access.find("two/../one") == one
    assert access.find("deep/two") == two
    (home / "link").symlink_to(two)
    assert access.find("link") == two
    (home / "out").symlink_to(outside)
    adapter(home / "file")
    (home / "file" / WEIGHTS).unlink()
    (home / "file" / WEIGHTS).symlink_to(outside / WEIGHTS)
    (home / "loop").symlink_to(home / "loop")
    bad = [str(outside), "../outside", "out", "file", "loop", "none", "a\0b", "x" * 5000, "/etc", "~"]
    for path in bad:
        with pytest.raises(InvalidRequest, match="within one of --adapter-folder") as raised:
            access.find(path)
        assert raised.value.param == "lora_path"
    with pytest.raises(InvalidRequest, match="start it with --adapter-folder"):
        AdapterAccess(TOKEN).find(str(one))
    with pytest.raises(StartupError, match="not a folder"):
        AdapterAccess(TOKEN, (tmp_path / "none",))
