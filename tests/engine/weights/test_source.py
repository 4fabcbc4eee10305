from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ModelUnavailable
from engine.weights.source import locate


def test_a_folder_is_itself(tiny_model: Path) -> None:
    assert locate(str(tiny_model)) == tiny_model


def test_the_demo_is_bundled() -> None:
    assert (locate("demo") / "tokenizer.json").is_file()


def test_a_folder_without_a_model_and_no_folder_at_all_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"config\.json does not exist"):
        locate(str(tmp_path))
    with pytest.raises(ModelUnavailable, match="no folder"):
        locate(str(tmp_path / "nothing"))
    with pytest.raises(ModelUnavailable, match="'demo'"):
        locate("nothing")


def test_links_to_nowhere_are_said_so(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelUnavailable, match=r"link is a link to .*gone, which is not there"):
        locate(str(tmp_path / "link"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "m.gguf").symlink_to(tmp_path / "gone.gguf")
    with pytest.raises(ModelUnavailable, match=r"m\.gguf is a link to a file that is not there"):
        locate(str(folder))
    with pytest.raises(ModelUnavailable, match=r"m\.gguf is a link"):
        locate(str(folder / "m.gguf"))


def test_a_hub_id_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelUnavailable, match=r"some/model is not in the local cache.*--model a folder"):
        locate("some/model")


def test_a_hub_id_in_the_local_cache_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants

    folder = tmp_path / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert locate("some/model") == snapshot
