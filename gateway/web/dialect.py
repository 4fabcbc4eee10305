"""The API dialect in which a request is answered."""

from __future__ import annotations

from starlette.types import Scope

_VERSION = b"anthropic-version"
"""A header that only Anthropic's clients send, and always."""


def is_anthropic(scope: Scope) -> bool:
    """Whether the client speaks Anthropic's API: by the path, or by a header on a path that both APIs have."""
    path: str = scope["path"]
    if path.startswith("/v1/models"):
        return any(name == _VERSION for name, _ in scope["headers"])
    return path.startswith("/v1/messages")
