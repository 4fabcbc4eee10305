from __future__ import annotations

import gzip
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.backends import token_ids
from gateway.backends.token_ids import TokenIds, UnknownToken

FILE = b"".join(b"%b %d\n" % (b64encode(piece), rank) for rank, piece in enumerate([b"Hel", b"lo", b"\xc3"]))
NAME = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


@pytest.fixture(autouse=True)
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_ids, "SHA256", sha256(FILE).hexdigest())
    monkeypatch.setattr(token_ids, "_PACKAGES", ())


@pytest.mark.parametrize("name", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"])
def test_it_is_found_in_tiktokens_cache(tmp_path: Path, name: str) -> None:
    (tmp_path / NAME).write_bytes(FILE)
    found = TokenIds.load({name: str(tmp_path)})
    assert found is not None
    assert found.text([0, 1, 2]) == "Hello\ufffd"
    with pytest.raises(UnknownToken, match="no token 3"):
        found.text([3])


def test_it_is_found_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bringer").mkdir()
    (tmp_path / "bringer" / "__init__.py").write_text("raise ImportError('it is not to be imported')")
    (tmp_path / "bringer" / "base.gz").write_bytes(gzip.compress(FILE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(token_ids, "_PACKAGES", (("not_there", "x"), ("bringer", "base.gz")))
    found = TokenIds.load({})
    assert found is not None
    assert found.text([0, 1]) == "Hello"


def test_a_file_that_is_not_the_one_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).write_bytes(FILE[:-1])
    assert TokenIds.load({"TIKTOKEN_CACHE_DIR": str(tmp_path)}) is None
    (tmp_path / "broken.gz").write_bytes(gzip.compress(FILE)[:-9])
    monkeypatch.setattr(token_ids, "_paths", lambda environ: [tmp_path, tmp_path / "broken.gz"])
    assert TokenIds.load({}) is None


def test_nowhere(tmp_path: Path) -> None:
    assert TokenIds.load({"TIKTOKEN_CACHE_DIR": str(tmp_path / "nowhere")}) is None
    assert TokenIds.load({}) is None
