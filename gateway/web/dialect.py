"""In whose words a request is to be answered."""

from __future__ import annotations

from starlette.types import Scope

_VERSION = b"anthropic-version"
"""A header that Anthropic's clients always send, and no others do."""


def is_anthropics(scope: Scope) -> bool:
    """Whether Anthropic's client asks: by the path, or by its header on a path that both dialects have."""
    path: str = scope["path"]
    if path.startswith("/v1/models"):
        return any(name == _VERSION for name, _ in scope["headers"])
    return path.startswith("/v1/messages")
