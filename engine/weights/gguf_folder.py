"""A GGUF file as a model folder: links to the weights, and config.json and tokenizer.json made from the metadata.

The folder lies in the user's cache (``$XDG_CACHE_HOME/tollgate/gguf``), so that whatever reads a model folder, in this
process or another, reads GGUF files too, and a vocabulary is converted once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from engine.errors import ModelUnavailable
from engine.weights.gguf import Gguf, parts
from engine.weights.gguf_config import config_json
from engine.weights.gguf_tokenizer import Vocabulary

_MADE = 3
"""Raised when the same file would be converted to something else."""
_BESIDE = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
"""What is taken from beside the file, if there is a tokenizer.json; what of it is missing, from the file."""


def as_folder(path: Path) -> Path:
    """Raises ``ModelUnavailable`` or ``UnsupportedModel``."""
    path = path.resolve()
    folder = _cache() / f"{path.stem}-{_key(path)}"
    if (folder / "config.json").is_file():
        return folder
    file = Gguf(path)
    config = config_json(file)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    except OSError as error:
        raise ModelUnavailable(
            f"{folder.parent} cannot be written to: {error}. Set XDG_CACHE_HOME to a folder that can."
        ) from error
    try:
        for part in parts(path):
            (made / part.name).symlink_to(part)
        _write_tokenizer(file, made)
        _write(made / "config.json", config)
        made.rename(folder)
    except OSError as error:
        if not (folder / "config.json").is_file():  # unless another process has made it meanwhile
            raise ModelUnavailable(f"{folder} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tollgate" / "gguf"


def _key(path: Path) -> str:
    """Of everything that the folder is made from."""
    seen = [str(_MADE)]
    for source in [*parts(path), *_beside(path)]:
        stat = source.stat()
        seen.append(f"{source}:{stat.st_size}:{stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _beside(path: Path) -> list[Path]:
    if not path.with_name("tokenizer.json").is_file():
        return []
    return [source for source in map(path.with_name, _BESIDE) if source.is_file()]


def _write_tokenizer(file: Gguf, folder: Path) -> None:
    for source in _beside(file.path):
        shutil.copyfile(source, folder / source.name)
    vocabulary = Vocabulary(file)
    ways = {
        "tokenizer.json": vocabulary.tokenizer_json,
        "tokenizer_config.json": vocabulary.tokenizer_config,
        "generation_config.json": vocabulary.generation_config,
    }
    for name, way in ways.items():
        if not (folder / name).exists():
            _write(folder / name, way())


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
