"""Calls as Qwen3-Coder and its successors write them: tags, each with a value that is text or JSON.

    <function=weather>
    <parameter=city>
    Paris
    </parameter>
    </function>

A value's type follows from the tool's schema, not from the tags. Text is taken literally, whatever it looks like.
https://huggingface.co/Qwen/Qwen3-Coder-480B-A35B-Instruct
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engine.grammar.language import TIGHT, embedded, quoted
from engine.server.tools_source import Broken, Reading

OPENING, CLOSING = "<function=", "</function>"
_CLOSING = "</parameter>"
_LONGEST_NAME = 256
_REFERENCES = 8
"""Followed from one schema to the next."""


def read_name(following: Callable[[], Reading], *, opened: bool) -> Reading:
    """The name in ``<function=name>``. ``opened``: what is before the name was read."""
    if not opened:
        yield from _tag(following, OPENING)
    return (yield from _until(following, ">", _LONGEST_NAME)).strip()


def read_parameters(
    following: Callable[[], Reading], schema: Mapping[str, Any], put: Callable[[str], None]
) -> Reading:
    """Up to ``</function>``. ``put`` gets the arguments as JSON, one after the other. Raises ``Broken``."""
    properties = schema.get("properties")
    before = "{"
    while (yield from _tag(following, "<parameter=", CLOSING)) == "<parameter=":
        name = (yield from _until(following, ">", _LONGEST_NAME)).strip()
        text = yield from _until(following, _CLOSING)
        known = properties.get(name) if isinstance(properties, Mapping) else None
        value = argument(text.removeprefix("\n").removesuffix("\n"), known, schema)
        put(f"{before}{json.dumps(name, ensure_ascii=False)}: {value}")
        before = ", "
    put("{}" if before == "{" else "}")
    return ""


def _tag(following: Callable[[], Reading], *tags: str) -> Reading:
    """The next of ``tags``, with any white space before it."""
    found = ""
    while found not in tags:
        found = (found + (yield from following())).lstrip()
        if not any(tag.startswith(found) for tag in tags):
            raise Broken
    return found


def _until(following: Callable[[], Reading], sign: str, longest: int | None = None) -> Reading:
    """The text before ``sign``."""
    found: list[str] = []
    while found[-len(sign) :] != list(sign):
        found.append((yield from following()))
        if longest is not None and len(found) > longest:
            raise Broken
    return "".join(found[: -len(sign)])


def argument(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """A value as JSON, by its schema, which may refer to others of ``root``. What does not match is text."""
    kinds, bare = _kinds(schema, root), text.strip()
    if "null" in kinds and bare in ("null", "None"):
        return "null"
    if kinds and "string" not in kinds:
        if "boolean" in kinds and bare.lower() in ("true", "false"):
            return bare.lower()
        try:
            json.dumps(json.loads(bare, parse_constant=_refused), ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            pass
        else:
            return bare
    return json.dumps(text, ensure_ascii=False)


def rules(rule: str, name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """A Lark grammar whose rule ``rule`` is a call, in which properties come in their schema's order; ``{rule}_named``
    is the same without ``<function=``.

    Lengths and enums of strings are enforced, patterns and formats are not.
    """
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    parts = []
    for i, key in enumerate(dict.fromkeys((*properties, *required))):
        known = properties.get(key, {})
        part = f"{rule}_{i}"
        yield f"{part}: {quoted(f'<parameter={key}>')} {_NEW_LINE} {part}_value"
        yield f"{part}_value{_value(known, schema)}"
        parts.append(part if key in required else f"{part}?")
    if schema.get("additionalProperties") not in (None, False) or not (
        parts or "additionalProperties" in schema
    ):
        yield rf"{rule}_more: /<parameter=[^<>\n]{{1,{_LONGEST_NAME}}}>/ {_NEW_LINE} {rule}_more_value"
        yield f"{rule}_more_value{_text('*')}"
        parts.append(f"{rule}_more*")
    yield f"{rule}_named: {quoted(f'{name}>')} {_NEW_LINE} {' '.join(parts)} {quoted(CLOSING)}"
    yield f"{rule}: {quoted(OPENING)} {rule}_named"


_NEW_LINE = quoted("\n")


def _value(schema: Any, root: Mapping[str, Any]) -> str:
    """The rest of a rule for a value and the tag after it."""
    closing = f"{_NEW_LINE} {quoted(_CLOSING)} {_NEW_LINE}"
    kinds = _kinds(schema, root)
    if kinds and "string" not in kinds:
        others = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return f": {embedded({**schema, **others}, TIGHT)} {closing}"
    schema = _followed(schema, root)
    texts = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(texts, list) and texts:
        shown = [text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in texts]
        return f": ({' | '.join(map(quoted, shown))}) {closing}"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return _text(f"{{{least},{most}}}" if least or most != "" else "*")


def _text(times: str) -> str:
    """It ends at the first tag that closes it."""
    return rf"[lazy]: /(?s:.{times})\n<\/parameter>\n/"


def _kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """The types that a value may have; none if anything may be."""
    schema = _followed(schema, root)
    for name in ("anyOf", "oneOf"):
        if isinstance(among := schema.get(name), list) and among and "type" not in schema:
            found = [_kinds(one, root) for one in among]
            return set().union(*found) if all(found) else set()
    if isinstance(kinds := schema.get("type"), str):
        return {kinds}
    if isinstance(kinds, list):
        return {kind for kind in kinds if isinstance(kind, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return {_KINDS.get(type(value), "null") for value in values} if isinstance(values, list) else set()


_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _followed(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(_REFERENCES):
        if not isinstance(schema, Mapping):
            break
        place = schema.get("$ref")
        if not isinstance(place, str) or not place.startswith("#/"):
            return schema
        schema = root
        for step in place[2:].split("/"):
            schema = (
                schema.get(step.replace("~1", "/").replace("~0", "~"))
                if isinstance(schema, Mapping)
                else None
            )
    return {}


def _refused(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
