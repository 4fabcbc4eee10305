"""``sidecar.embedder``: the model that makes embeddings of texts, and where it runs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from gateway.policy.schema.values import Frozen, Name, Text


class EmbedderSettings(Frozen):
    model: Text
    """A sentence-transformers folder or hub id, or the model's name at ``backend``; ``builtin`` is all-MiniLM-L6-v2,
    which the shipped heads need."""
    backend: Name | None = None
    """An engine that serves it; None: the sidecar itself."""

    @property
    def is_builtin(self) -> bool:
        return self.backend is None and self.model == "builtin"


def _by_name(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


NamedEmbedder = Annotated[
    EmbedderSettings, BeforeValidator(_by_name, json_schema_input_type=Text | EmbedderSettings)
]
"""Its name alone stands for one of the sidecar's own."""
