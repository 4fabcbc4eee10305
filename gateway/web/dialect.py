"""The API dialect in which a request is answered."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qsl, urlencode

from starlette.types import Scope

Spoken = Literal["openai", "anthropic", "gemini"]

_MODELS = "/v1/models"
_HEADERS: dict[bytes, Spoken] = {b"anthropic-version": "anthropic", b"x-goog-api-key": "gemini"}
"""Headers that only Anthropic's and Google's clients send, and always."""
_KEY = b"x-goog-api-key"


def dialect_of(scope: Scope) -> Spoken:
    """The API that the client speaks: by the path, or by a header on a path that several APIs have."""
    path: str = scope["path"]
    if path.startswith(_MODELS):
        if ":" in path and path.rpartition(":")[2] in GOOGLES:
            return "gemini"
        return next((_HEADERS[name] for name, _ in scope["headers"] if name in _HEADERS), "openai")
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "gemini" if path.startswith("/v1beta") else "openai"


GOOGLES = frozenset(
    {"generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents"}
)
"""What follows the name of a model in Google's paths."""


def take_query_key(scope: Scope) -> None:
    """Google's clients may send their key as ``?key=``: it becomes a header, and is seen by nobody else."""
    query: bytes = scope.get("query_string", b"")
    if b"key=" not in query:
        return
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    keys = [value for name, value in pairs if name == "key" and value]
    if not keys:
        return
    scope["query_string"] = urlencode([pair for pair in pairs if pair[0] != "key"]).encode()
    if not any(name == _KEY for name, _ in scope["headers"]):
        scope["headers"] = [*scope["headers"], (_KEY, keys[-1].encode())]
