"""Sidecars as policies have them started, with small models of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.policy.schema import Policy
from gateway.sidecar.requirements import sidecar_config
from tests.e2e.keys.harness import UP, base, joined
from tests.sidecars import SidecarProcess


@dataclass(frozen=True)
class Folders:
    """Of models on disk."""

    english: Path
    """A spaCy model that knows the name Ann, in English alone."""
    german: Path
    embedder: Path
    """With vectors of 16 dimensions."""
    classifier: Path
    """Whatever it reads, it is about as sure of ``rude`` as of ``vile`` and ``safe``."""

    @property
    def spacy(self) -> dict[str, str]:
        return {"en": str(self.english), "de": str(self.german)}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    import spacy
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    from gateway.sidecar.models.embedder import builtin_folder

    root = tmp_path_factory.mktemp("models")
    found = Folders(root / "en", root / "de", root / "embedder", root / "classifier")
    english = spacy.blank("en")
    english.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Ann"}])  # type: ignore[attr-defined]
    english.to_disk(found.english)
    spacy.blank("de").to_disk(found.german)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    labels = {0: "safe", 1: "rude", 2: "vile"}
    config = BertConfig(max_position_embeddings=64, num_labels=3, id2label=labels, **sizes)
    for model, folder in (
        (BertForSequenceClassification(config), found.classifier),
        (BertModel(config), found.embedder),
    ):
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
            shutil.copy(builtin_folder() / name, folder)
    return found


def _sidecar(folder: Path, policy: dict[str, Any]) -> Iterator[SidecarProcess]:
    """As ``tollgate serve`` would start it for this policy."""
    folder.mkdir()
    whole = joined(base(), policy)
    for backend in whole["backends"].values():
        backend["base_url"] = UP if "base_url" in backend else None
        if backend["base_url"] is None:
            del backend["base_url"]
    config = asdict(sidecar_config(Policy.model_validate(whole), folder / "sidecar.sock"))
    process = SidecarProcess(folder, **{name: value for name, value in config.items() if name != "socket"})
    process.start()
    yield process
    process.kill()


@pytest.fixture(scope="session")
def models(folders: Folders, sidecar_folder: Path) -> Iterator[SidecarProcess]:
    """All that the experiments ask for, with settings by default."""
    rules = {
        "sidecar": {"spacy": folders.spacy},
        "caches": {"semantic": {}},
        "guards": {
            "names": {"kind": "pii", "entities": ["PERSON"], "languages": ["en", "de"]},
            "own": {"kind": "toxicity", "classifier": {"model": str(folders.classifier), "unsafe": ["rude"]}},
        },
    }
    yield from _sidecar(sidecar_folder / "keys", rules)


@pytest.fixture(scope="session")
def tight(sidecar_folder: Path) -> Iterator[SidecarProcess]:
    """One with little room."""
    rules = {
        "sidecar": {"max_queue": 2, "max_batch": 1},
        "caches": {"semantic": {"max_entries": 2, "max_bytes": "16KiB"}},
    }
    yield from _sidecar(sidecar_folder / "tight", rules)
