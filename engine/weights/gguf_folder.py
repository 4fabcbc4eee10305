"""A GGUF file as a model folder: links to the weights, and config.json and tokenizer.json made from the metadata.

The folder is in the user's cache (``$XDG_CACHE_HOME/tollgate/gguf``), so that all code that reads model folders, in any
process, also reads GGUF files, and a vocabulary is converted only once.
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

_VERSION = 4
"""Increased when the conversion changes, so that cached folders are not reused."""
_SIBLING_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
"""Taken from the file's folder if it has a tokenizer.json; those that are missing are made from the file."""


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
        scratch = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    except OSError as error:
        raise ModelUnavailable(
            f"{folder.parent} cannot be written to: {error}. Set XDG_CACHE_HOME to a folder that can."
        ) from error
    try:
        for part in parts(path):
            (scratch / part.name).symlink_to(part)
        _write_tokenizer(file, scratch)
        _write(scratch / "config.json", config)
        scratch.rename(folder)
    except OSError as error:
        if not (folder / "config.json").is_file():  # unless another process has made it meanwhile
            raise ModelUnavailable(f"{folder} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "tollgate" / "gguf"


def _key(path: Path) -> str:
    """A hash of everything that the folder is made from."""
    seen = [str(_VERSION)]
    for source in [*parts(path), *_sibling_files(path)]:
        stat = source.stat()
        seen.append(f"{source}:{stat.st_size}:{stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _sibling_files(path: Path) -> list[Path]:
    if not path.with_name("tokenizer.json").is_file():
        return []
    return [source for source in map(path.with_name, _SIBLING_FILES) if source.is_file()]


def _write_tokenizer(file: Gguf, folder: Path) -> None:
    for source in _sibling_files(file.path):
        shutil.copyfile(source, folder / source.name)
    vocabulary = Vocabulary(file)
    writers = {
        "tokenizer.json": vocabulary.tokenizer_json,
        "tokenizer_config.json": vocabulary.tokenizer_config,
        "generation_config.json": vocabulary.generation_config,
    }
    for name, make in writers.items():
        if not (folder / name).exists():
            _write(folder / name, make())


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
