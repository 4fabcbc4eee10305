"""A policy file's text as others may read it: without what is a secret in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import yaml

from gateway.policy.environment import protect, restore
from gateway.policy.yaml_tree import LOADER

SECRET_KEYS = frozenset(
    [
        *("api_key", "client_secret", "secret", "previous_secret", "token", "password"),
        *("secret_access_key", "session_token"),
        # Hashes of keys: of one that somebody made up, the key can be guessed.
        *("sha256", "revoked_keys"),
    ]
)
HIDDEN = '"(hidden)"'
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_CREDENTIALS = re.compile(r"(://[^\s/@:]*:)[^\s/@]+@")
_IN_QUERY = re.compile(
    r"([?&][\w-]{0,40}(?:key|token|secret|password|sig|signature)=)(?!\$\{)[^\s&#\"']+", re.IGNORECASE
)
_IN_COMMENT = re.compile(rf"(#[^\n]*?\b(?:{'|'.join(sorted(SECRET_KEYS))})\b['\"]?\s*[:=]\s*)[^\n]+")
_SHORTEST = 4
"""Characters of a variable's value; shorter ones are found in any text."""


def redacted(text: str) -> str:
    """``text`` with ``(hidden)`` for keys, their hashes, and passwords in URLs, in comments too. References to the
    environment stay.

    A text that is no YAML is hidden as a whole.
    """
    try:
        root = yaml.compose(protect(text), Loader=LOADER)
    except yaml.YAMLError:
        return HIDDEN
    spans = sorted({(node.start_mark.index, node.end_mark.index) for node in _secrets(root)}, reverse=True)
    shown = protect(text)
    for start, end in spans:
        if not _REFERENCE.fullmatch(restore(shown[start:end]).strip("\"' ")):
            shown = shown[:start] + HIDDEN + shown[end:]
    shown = _CREDENTIALS.sub(r"\1(hidden)@", restore(shown))
    return _IN_COMMENT.sub(rf"\1{HIDDEN}", _IN_QUERY.sub(r"\1(hidden)", shown))


def without_values(message: str, env: Mapping[str, str]) -> str:
    """``message`` with the names of variables where it has their values."""
    for name, value in sorted(env.items(), key=lambda item: -len(item[1])):
        # As it is, as Python writes it in quotes, and cut off: the longest first, or the rest of it would stay.
        for shown in (value, repr(value)[1:-1], value[:80], value[:40]):
            if len(shown) >= _SHORTEST and shown in message:
                message = message.replace(shown, f"${{{name}}}")
    return message


def _scalars(node: yaml.Node) -> Iterator[yaml.Node]:
    """``node`` itself, or the entries of its list."""
    for one in node.value if isinstance(node, yaml.SequenceNode) else (node,):
        if isinstance(one, yaml.ScalarNode):
            yield one


def _secrets(root: yaml.Node | None) -> Iterator[yaml.Node]:
    waiting, seen = [root] if root is not None else [], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value in SECRET_KEYS:
                    yield from _scalars(value)
                elif key.value == "headers" and isinstance(value, yaml.MappingNode):
                    yield from (sent for _, sent in value.value if isinstance(sent, yaml.ScalarNode))
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
