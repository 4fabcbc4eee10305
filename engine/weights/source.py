"""Where a model's files are: the bundled folder, a folder of yours, or a repository on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelUnavailable

DEMO = "demo"
DEMO_DRAFT = "demo-draft"
"""The small model that goes with it."""
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def locate(model: str) -> Path:
    """The folder that holds the model. Raises ``ModelUnavailable``."""
    if model in (DEMO, DEMO_DRAFT):
        folder = Path(__file__).parents[1] / "demo" / ("model" if model == DEMO else "draft")
        return _checked(folder, "The bundled demo model is missing from this installation")
    folder = Path(model).expanduser()
    if folder.exists():
        return _checked(folder, f"{model} is not a model folder")
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise ModelUnavailable(
            f"There is no folder {model}. --model takes {DEMO!r}, a folder, or a hub id such as 'org/name'."
        )
    return _checked(_download(model), f"The repository {model} is not a model")


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
