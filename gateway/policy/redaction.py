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
    ]
)
HIDDEN = '"(hidden)"'
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_CREDENTIALS = re.compile(r"(://[^\s/@:]*:)[^\s/@]+@")
_SHORTEST = 4
"""Characters of a variable's value; shorter ones are found in any text."""


def redacted(text: str) -> str:
    """``text`` with ``(hidden)`` for keys, and for passwords in URLs. References to the environment stay.

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
    return _CREDENTIALS.sub(r"\1(hidden)@", restore(shown))


def without_values(message: str, env: Mapping[str, str]) -> str:
    """``message`` with the names of variables where it has their values."""
    for name, value in sorted(env.items(), key=lambda item: -len(item[1])):
        for shown in {value, value[:40], value[:80]}:
            if len(shown) >= _SHORTEST and shown in message:
                message = message.replace(shown, f"${{{name}}}")
    return message


def _secrets(root: yaml.Node | None) -> Iterator[yaml.Node]:
    waiting, seen = [root] if root is not None else [], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value in SECRET_KEYS and isinstance(value, yaml.ScalarNode):
                    yield value
                elif key.value == "headers" and isinstance(value, yaml.MappingNode):
                    yield from (sent for _, sent in value.value if isinstance(sent, yaml.ScalarNode))
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
