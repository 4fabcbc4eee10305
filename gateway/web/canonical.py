"""Canonical paths: without extra slashes, with one ``/v1``, and from Azure's forms."""

from __future__ import annotations

import re

UNVERSIONED = frozenset(
    {
        *("adapters", "audio", "batches", "chat", "completions", "embeddings", "files", "images", "messages"),
        *("models", "moderations", "requests", "rerank", "responses", "score"),
    }
)
"""The first segment after ``/v1`` of the paths that are served."""

_DEPLOYMENT = re.compile(
    r"deployments/(.+?)/((?:chat/)?completions|embeddings|audio/(?:speech|transcriptions|translations)"
    r"|images/(?:generations|edits))"
)
"""https://learn.microsoft.com/azure/ai-services/openai/reference"""

_GOOGLES = frozenset({"projects", "publishers", "v1beta", "v1beta1"})
"""How Google's paths begin."""


def canonical(path: str) -> tuple[str, str | None]:
    """``path`` as the routes have it, and the model that Azure's form of it names.

    A ``base_url`` that ends in a slash, lacks ``/v1`` or has it twice leads to the same place as a right one.
    """
    if path.startswith("/v1/") and not (path.endswith("/") or "//" in path or path.startswith("/v1/v1")):
        return path, None
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["openai"]:  # Azure's, and its newer API's /openai/v1
        deployed = _DEPLOYMENT.fullmatch("/".join(parts[1:]))
        if deployed is not None:
            return f"/v1/{deployed[2]}", deployed[1]
        if parts[1:2] in (["v1"], ["batches"], ["files"], ["models"], ["responses"]):
            parts = parts[1:]
    while parts[:2] in (["v1", "v1"], ["v1", "v1beta"]):
        parts = parts[1:]
    if parts and parts[0] in _GOOGLES and "publishers" in parts[:6]:  # Vertex AI's
        at = parts.index("publishers")
        if parts[at + 1 : at + 3] == ["google", "models"]:
            parts = ["v1beta", *parts[at + 2 :]]
    if parts and parts[0] in UNVERSIONED:
        parts = ["v1", *parts]
    return "/" + "/".join(parts), None
