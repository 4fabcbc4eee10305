"""The sidecar process's configuration, which the supervisor passes in an environment variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

CONFIG = "TOLLGATE_SIDECAR_CONFIG"
"""The variable that holds it, as JSON."""


@dataclass(frozen=True, slots=True)
class SidecarConfig:
    """If a new policy's is equal, the sidecar need not restart."""

    socket: str
    embedder: str | None = "builtin"
    """None: no embeddings, and so no heads and no index."""
    engine: str = ""
    """The URL of the engine that serves the model ``embedder``; empty: it is loaded here."""
    entities: bool = False
    """Whether Presidio is wanted."""
    index: bool = False
    """Whether there is a semantic cache."""
    classifiers: tuple[str, ...] = ()
    spacy: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    max_queue: int = 256
    max_batch: int = 16
    max_windows: int = 64
    """Of one text; longer texts are refused, not scored in part."""
    heads: str | None = None
    """The folder of the heads; None: the shipped ones."""
    redis: str | None = None
    """Where the semantic cache is kept; None: in memory."""
    index_bytes: int = 256 * 2**20
    index_entries: int = 100_000

    def heads_folder(self) -> Path:
        return Path(self.heads) if self.heads else Path(__file__).with_name("heads")

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> SidecarConfig:
        """Raises ValueError or TypeError."""
        fields: dict[str, Any] = orjson.loads(text)
        return cls(**{**fields, "classifiers": tuple(fields.get("classifiers", ()))})
