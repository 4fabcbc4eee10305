"""``sidecar``: the process of the small models."""

from __future__ import annotations

from pydantic import Field

from gateway.policy.schema.any_guard import (
    Language,
)
from gateway.policy.schema.values import Count, Frozen, Text


class SidecarSettings(Frozen):
    """The process that runs the small models for guards and the semantic cache."""

    embedder: Text = "builtin"
    """A sentence-transformers folder or hub id; ``builtin`` is all-MiniLM-L6-v2, which the shipped heads need."""
    spacy: dict[Language, Text] = Field(default={})
    """The spaCy model of a language, for names and places: ``{en: en_core_web_lg}``."""
    threads: Count = 1
    max_queue: Count = 256
    """Texts that may wait; beyond that a guard's ``on_error`` applies."""
    max_batch: Count = 16
