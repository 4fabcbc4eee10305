"""Locates a model's files: the bundled folder, a local folder or GGUF file, a bucket, or a repository on the hub."""

from __future__ import annotations

import re
from pathlib import Path

from engine.errors import ModelUnavailable

DEMO = "demo"
DEMO_DRAFT = "demo-draft"
"""Its draft model."""
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def locate(model: str) -> Path:
    """The folder that holds the model. Raises ``ModelUnavailable``."""
    if model in (DEMO, DEMO_DRAFT):
        folder = Path(__file__).parents[1] / "demo" / ("model" if model == DEMO else "draft")
        return _checked(folder, "The bundled demo model is missing from this installation")
    if is_url(model):
        # Imported lazily: only buckets need it.
        from engine.weights.s3 import fetch

        return locate(str(fetch(model)))
    folder = Path(model).expanduser()
    if folder.is_symlink() and not folder.exists():
        raise ModelUnavailable(f"{model} is a link to {folder.readlink()}, which is not there.")
    if file := _gguf(folder):
        # Imported lazily: only GGUF needs it.
        from engine.weights.gguf_folder import as_folder

        return as_folder(file)
    if folder.exists():
        return _checked(folder, f"{model} is not a model folder")
    if not _is_hub_id(model):
        raise ModelUnavailable(
            f"There is no folder {model}. --model takes {DEMO!r}, a folder, a .gguf file, s3://BUCKET/PREFIX, "
            "or a hub id such as 'org/name'."
        )
    return _checked(_download(model), f"The repository {model} is not a model")


def on_this_machine(model: str) -> Path:
    """What ``locate`` would find, as far as is known without reading weights or asking a hub or a bucket. Raises
    ``ModelUnavailable``."""
    path = Path(model).expanduser()
    if is_url(model):
        return path
    return path if _gguf(path) or (not path.exists() and _is_hub_id(model)) else locate(model)


def is_url(model: str) -> bool:
    return model.startswith("s3://")


def _is_hub_id(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "~", "/"))


def _gguf(path: Path) -> Path | None:
    """The GGUF file that ``path`` is, or that is in a folder without config.json."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    return gguf_file(path) if path.is_dir() and not (path / "config.json").exists() else None


def gguf_file(folder: Path) -> Path | None:
    """The folder's GGUF file, or its first part; ``None`` if there is none, or there are safetensors files.

    Raises ``ModelUnavailable`` if there are several.
    """
    found = sorted(file for file in folder.glob("*.gguf") if not _LATER_PART.search(file.name))
    if not found or any(folder.glob("*.safetensors")):
        return None
    if gone := [file for file in found if not file.is_file()]:
        raise ModelUnavailable(f"{gone[0]} is a link to a file that is not there.")
    if len(found) > 1:
        raise ModelUnavailable(
            f"{folder} holds several models: give --model one of {', '.join(file.name for file in found)} in it."
        )
    return found[0]


def _checked(folder: Path, complaint: str) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{complaint}: {folder / 'config.json'} does not exist.")
    return folder


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repository, allow_patterns=_PATTERNS))
    except RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"The hub has no model {repository}, or it needs a token (set HF_TOKEN)."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelUnavailable(
            f"{repository} is not in the local cache and cannot be downloaded: {error}. "
            "Check the network, or give --model a folder that holds the model."
        ) from error
