"""Adding a key to, and removing one from, the text of a policy file; comments and layout stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from gateway.policy import yaml_tree
from gateway.policy.environment import protect
from gateway.policy.problems import Problem

NEW_FILE = (
    "# API keys, written by 'tollgate keys'. It holds hashes only; the keys themselves are kept nowhere.\n"
)
ISSUED_FILE = "# API keys, made and revoked through the gateway, which may not write to its policy folder.\n"
_PLAIN = frozenset(" !#$%&'()*+,-./:;<=>?@[]^_`{|}~")


class CannotEdit(Exception):
    """The file has a layout that this module cannot change safely."""


def added(text: str, entry: Mapping[str, Any] | str, name: str = "keys") -> str:
    """``text`` with ``entry`` at the end of its list ``name``. Raises ``CannotEdit``."""
    before = _content(text)
    listed = before.get(name) or []
    if not isinstance(listed, list):
        raise CannotEdit
    new = _with(text, _flow(entry), name)
    _verify(new, {**before, name: [*listed, entry if isinstance(entry, str) else dict(entry)]})
    return new


def removed(text: str, index: int) -> str:
    """``text`` without entry number ``index`` of its ``keys``. Raises ``CannotEdit``."""
    before = _content(text)
    new = _without(text, index)
    _verify(new, {**before, "keys": [key for at, key in enumerate(before["keys"]) if at != index]})
    return new


def replaced(text: str, index: int, entry: Mapping[str, Any]) -> str:
    """``text`` with ``entry`` in place of entry number ``index`` of its ``keys``. Raises ``CannotEdit``."""
    return added(removed(text, index), entry)


def _with(text: str, item: str, name: str) -> str:
    found = _keys(text, name)
    if found is None:
        return _line_end(text) + f"{name}:\n  - {item}\n"
    label, keys = found
    if isinstance(keys, yaml.ScalarNode):
        at = _next_line(text, label.end_mark.index)
        return _line_end(text[:at]) + f"  - {item}\n" + text[at:]
    if not isinstance(keys, yaml.SequenceNode):
        raise CannotEdit
    start, end = keys.start_mark.index, keys.end_mark.index
    if not keys.value:
        return f"{text[:start].rstrip(' ')}\n  - {item}{text[end:]}"
    if keys.flow_style:
        comma = "" if text[: end - 1].rstrip().endswith(",") else ", "
        return text[: end - 1] + comma + item + text[end - 1 :]
    at = _after(text, keys)
    return _line_end(text[:at]) + " " * keys.start_mark.column + f"- {item}\n" + text[at:]


def _without(text: str, index: int) -> str:
    found = _keys(text)
    if found is None or not isinstance(found[1], yaml.SequenceNode):
        raise CannotEdit
    name, keys = found[0], found[1]
    items = keys.value
    item = items[index]
    if keys.flow_style:
        start, end = item.start_mark.index, item.end_mark.index
        if len(items) == 1:
            start, end = keys.start_mark.index + 1, keys.end_mark.index - 1
        elif index + 1 < len(items):
            end = items[index + 1].start_mark.index
        else:
            start = items[index - 1].end_mark.index
        return text[:start] + text[end:]
    start = text.rfind("\n", 0, item.start_mark.index) + 1
    end = _after(text, item)
    if len(items) > 1:
        return text[:start] + text[end:]
    colon = text.index(":", name.end_mark.index) + 1
    return f"{text[:colon]} []{text[colon:start]}{text[end:]}"


def _keys(text: str, name: str = "keys") -> tuple[yaml.Node, yaml.Node] | None:
    root = yaml.compose(protect(text), Loader=yaml_tree.LOADER)
    if root is None:
        return None
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise CannotEdit
    return next(((label, value) for label, value in root.value if label.value == name), None)


def _after(text: str, node: yaml.Node) -> int:
    """Where the line after the last one of ``node`` begins."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(node, yaml.MappingNode) else last
    end = node.end_mark
    return end.index if end.column == 0 else _next_line(text, end.index)


def _next_line(text: str, index: int) -> int:
    return (text.find("\n", index) + 1) or len(text)


def _line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_flow(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, int | float):
        # YAML reads 1e-05 as text.
        return format(Decimal(repr(value)), "f")
    # What looks like a reference to the environment is meant literally.
    text = str(value).replace("${", "$${")
    return (
        '"'
        + "".join(char if char.isalnum() or char in _PLAIN else f"\\U{ord(char):08x}" for char in text)
        + '"'
    )


def _content(text: str) -> dict[str, Any]:
    problems: list[Problem] = []
    tree = yaml_tree.read(text, Path("keys"), {}, problems) if text else None
    if problems:
        raise CannotEdit
    return yaml_tree.data(tree) if tree is not None else {}


def _verify(text: str, expected: Mapping[str, Any]) -> None:
    if _content(text) != expected:
        raise CannotEdit
