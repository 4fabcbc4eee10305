"""Environment variables inside a policy's scalars: ``${NAME}``, ``${NAME:-default}``, and ``$${`` for ``${``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_OPENING = re.compile(r"\$\$\{|\$\{")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{)[^}])*))?\}")

_UNQUOTED = re.compile(r"\$\{[^{}\n\"']*\}")
_SPECIAL = "{}[],:#&*!|>%@` "
_HIDDEN = {ord(char): 0x10FE00 + ord(char) for char in _SPECIAL}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}


def protect(text: str) -> str:
    """YAML text in which a reference is plain text to the parser even where ``{`` and ``,`` have a meaning, as in
    ``{api_key: ${NAME}}``: its special characters are replaced by private-use ones."""
    return _UNQUOTED.sub(lambda reference: reference[0].translate(_HIDDEN), text) if "${" in text else text


def restore(text: str) -> str:
    """The characters that ``protect`` replaced."""
    return text.translate(_SHOWN) if not text.isascii() else text


@dataclass(frozen=True, slots=True)
class Substituted:
    """A scalar's text after substitution, and the variables without a default that are unset or empty."""

    text: str
    used: bool = False
    unset: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


def substitute(text: str, env: Mapping[str, str]) -> Substituted:
    """Replace every reference in ``text``; a default replaces a variable that is unset or empty.

    Values are not substituted again, so they can hold ``${`` themselves. Raises ValueError on a malformed reference.
    """
    if "${" not in text:
        return Substituted(text)
    parts: list[str] = []
    unset: list[str] = []
    empty: list[str] = []
    position, used = 0, False
    while opening := _OPENING.search(text, position):
        parts.append(text[position : opening.start()])
        if opening[0] == "$${":
            parts.append("${")
            position = opening.end()
            continue
        reference = _REFERENCE.match(text, opening.start())
        if reference is None:
            raise ValueError("write ${NAME} or ${NAME:-default}, or $${ where you mean the characters ${")
        name, default = reference.groups()
        value = env.get(name)
        if not value and default is not None:
            value = default
        elif value is None:
            unset.append(name)
        elif not value:
            empty.append(name)
        parts.append(value or "")
        position, used = reference.end(), True
    parts.append(text[position:])
    return Substituted("".join(parts), used, tuple(unset), tuple(empty))
