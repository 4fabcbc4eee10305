"""Keys without a value, and values that were meant to be a variable's."""

from __future__ import annotations

import re
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


_FOREIGN = re.compile(
    r"(?:Bearer )?(?:\$([A-Za-z_]\w*)|os\.environ/(\w+)|(?i:env)[:.](\w+)|\{\{ ?(?:env\.)?(\w+) ?\}\})",
    re.ASCII,
)
"""Variables as a shell, LiteLLM and templates have them."""
_SECRETS = frozenset((*BACKEND_SECRETS, "access_key_id", "password_file"))


def variable_in_other_words(valid: Valid) -> Findings:
    """A secret that is the name of one would be sent as it stands."""
    return _foreign(valid.written)


def _foreign(content: Any, path: KeyPath = ()) -> Iterator[Diagnostic]:
    if isinstance(content, dict):
        for key, value in content.items():
            secret = key in _SECRETS or path[-1:] == ("headers",)
            if isinstance(value, str) and secret and (found := _FOREIGN.fullmatch(value)):
                name = next(group for group in found.groups() if group)
                message = f"is taken as it stands; for the value of a variable write '${{{name}}}'"
                yield Diagnostic((*path, key), message)
            else:
                yield from _foreign(value, (*path, key))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _foreign(value, (*path, index))
