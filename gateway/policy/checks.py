"""What a schema cannot see: names that must exist elsewhere, and things that must not collide.

The checks read a policy's plain content, sound or not, so that one mistake does not hide the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.policy.problems import KeyPath, suggestion
from gateway.policy.schema import EngineBackend

_GLOB = frozenset("*?[")
_OWN_OPTIONS = {"--model": "model", "--host": "base_url", "--port": "base_url"}


class Finding(NamedTuple):
    path: KeyPath
    message: str
    clash: KeyPath | None = None
    """The other place, where two collide."""


def check(content: Mapping[str, Any]) -> Iterator[Finding]:
    """Everything that is wrong between the parts of a policy."""
    yield from _targets(content)
    yield from _keys(content)
    yield from _launches(content)


def _targets(content: Mapping[str, Any]) -> Iterator[Finding]:
    backends = tuple(_mapping(content, "backends"))
    for name, model in _mapping(content, "models").items():
        for index, target in enumerate(_list(model, "targets")):
            backend = target.get("backend") if isinstance(target, dict) else None
            if isinstance(backend, str) and backend not in backends:
                yield Finding(
                    ("models", name, "targets", index, "backend"),
                    f"no backend is named '{backend}'{suggestion(backend, backends)}",
                )


def _keys(content: Mapping[str, Any]) -> Iterator[Finding]:
    models = tuple(_mapping(content, "models"))
    seen: dict[tuple[str, str], KeyPath] = {}
    for index, key in enumerate(_list(content, "keys")):
        if not isinstance(key, dict):
            continue
        for what, message in (("id", "two keys have this id"), ("sha256", "two keys have this hash")):
            path: KeyPath = ("keys", index, what)
            value = key.get(what)
            if isinstance(value, str) and (first := seen.setdefault((what, value.lower()), path)) != path:
                yield Finding(path, f"{message}; each needs its own", first)
        for position, pattern in enumerate(_list(key, "models")):
            # A pattern may wait for models to come; a plain name that fits none is a slip.
            if isinstance(pattern, str) and not _GLOB & set(pattern) and pattern not in models:
                yield Finding(
                    ("keys", index, "models", position),
                    f"no model is named '{pattern}'{suggestion(pattern, models)}",
                )


def _launches(content: Mapping[str, Any]) -> Iterator[Finding]:
    ports: dict[int, KeyPath] = {}
    for name, backend in _launched(content):
        url = urlsplit(backend.base_url)
        path: KeyPath = ("backends", name, "base_url")
        if url.scheme != "http" or not _loopback(url.hostname or ""):
            message = "with 'launch: true' the engine runs on this machine; write http://127.0.0.1:PORT"
            yield Finding(path, message)
        port = url.port or 80
        if (first := ports.setdefault(port, path)) != path:
            yield Finding(path, f"two launched engines have port {port}; give each its own", first)
        for index, argument in enumerate(backend.args):
            option = argument.partition("=")[0]
            if option in _OWN_OPTIONS:
                message = f"'{option}' is set by '{_OWN_OPTIONS[option]}'; write it there"
                yield Finding(("backends", name, "args", index), message)


def _launched(content: Mapping[str, Any]) -> Iterator[tuple[str, EngineBackend]]:
    for name, backend in _mapping(content, "backends").items():
        with suppress(ValidationError):
            engine = EngineBackend.model_validate(backend)
            if engine.launch:
                yield name, engine


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _mapping(content: Any, key: str) -> dict[str, Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, dict) else {}


def _list(content: Any, key: str) -> list[Any]:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, list) else []
