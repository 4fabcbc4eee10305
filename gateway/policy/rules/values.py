"""Keys without a value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.policy.problems import Diagnostic, KeyPath
from gateway.policy.rules.subject import Findings, Valid
from gateway.policy.schema import BACKEND_SECRETS


def without_value(valid: Valid) -> Findings:
    """``exact:`` without a value switches nothing on."""
    return _without_value(valid.written)


def _without_value(content: Any, path: KeyPath = ()) -> Iterator[Diagnostic]:
    if isinstance(content, dict):
        for key, value in content.items():
            if value is not None:
                yield from _without_value(value, (*path, key))
            elif not (
                len(path) >= 2 and path[0] == "backends" and key in BACKEND_SECRETS
            ):  # its variable is not set
                instead = "write {} for the defaults" if path == ("caches",) else "write one"
                message = f"has no value, and is ignored; {instead}, or remove the key"
                yield Diagnostic((*path, key), message)
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _without_value(value, (*path, index))
