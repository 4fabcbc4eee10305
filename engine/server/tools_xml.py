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
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from engine.grammar.language import TIGHT, embedded, quoted
from engine.server.tools_source import Broken, Reading

OPENING, CLOSING = "<function=", "</function>"
_CLOSING = "</parameter>"
_LONGEST_NAME = 256
_REFERENCES = 8
"""Followed from one schema to the next."""
_MOST_SHAPES = 16
"""Of a call whose schema has alternatives; a grammar leaves further ones out."""
_MOST_LOOKED_AT = 256
"""Schemas that one is made of; it may refer to itself."""


def read_name(following: Callable[[], Reading], *, opened: bool) -> Reading:
    """The name in ``<function=name>``. ``opened``: what is before the name was read."""
    if not opened:
        yield from _tag(following, OPENING)
    return (yield from _until(following, ">", _LONGEST_NAME)).strip()


def read_parameters(
    following: Callable[[], Reading], schema: Mapping[str, Any], put: Callable[[str], None]
) -> Reading:
    """Up to ``</function>``. ``put`` gets the arguments as JSON, one after the other. Raises ``Broken``."""
    properties = {key: one for shape in _shapes(schema, schema) for key, one in shape["properties"].items()}
    before = "{"
    while (yield from _tag(following, "<parameter=", CLOSING)) == "<parameter=":
        name = (yield from _until(following, ">", _LONGEST_NAME)).strip()
        text = yield from _until(following, _CLOSING)
        value = argument(text.removeprefix("\n").removesuffix("\n"), properties.get(name), schema)
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
    kinds, texts, bare = _kinds(schema, root), _texts(schema, root), text.strip()
    if "null" in kinds and bare in ("null", "None"):
        return "null"
    if kinds and ("string" not in kinds or (texts is not None and text not in texts)):
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
    shapes = list(_shapes(schema, schema))
    for number, shape in enumerate(shapes):
        yield from _shape(f"{rule}_{number}", shape, schema)
    among = " | ".join(f"{rule}_{number}" for number in range(len(shapes)))
    yield f"{rule}_named: {quoted(f'{name}>')} {_NEW_LINE} ({among}) {quoted(CLOSING)}"
    yield f"{rule}: {quoted(OPENING)} {rule}_named"


def _shape(rule: str, shape: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    properties, required = shape["properties"], shape["required"]
    parts = []
    for i, key in enumerate(dict.fromkeys((*properties, *required))):
        part = f"{rule}_{i}"
        yield f"{part}: {quoted(f'<parameter={key}>')} {_NEW_LINE} {part}_value"
        yield f"{part}_value{_value(properties.get(key, {}), root)}"
        parts.append(part if key in required else f"{part}?")
    if shape.get("additionalProperties") not in (None, False) or not (
        parts or "additionalProperties" in shape
    ):
        yield rf"{rule}_more: /<parameter=[^<>\n]{{1,{_LONGEST_NAME}}}>/ {_NEW_LINE} {rule}_more_value"
        yield f"{rule}_more_value{_text('*')}"
        parts.append(f"{rule}_more*")
    yield f"{rule}: {' '.join(parts) or quoted('')}"


def _shapes(
    schema: Any, root: Mapping[str, Any], left: Iterator[int] | None = None
) -> Iterator[dict[str, Any]]:
    """What an object may be, with all its ``properties`` and ``required`` in one place each, whatever ``schema`` refers
    to, joins or leaves open. ``left``: how many more may be looked at."""
    left = iter(range(_MOST_LOOKED_AT, 0, -1)) if left is None else left
    schema = _followed(schema, root)
    properties, required = schema.get("properties"), schema.get("required")
    own = {
        **schema,
        "properties": properties if isinstance(properties, Mapping) else {},
        "required": required if isinstance(required, list) else [],
    }
    choices = [[one] for one in _listed(schema, "allOf")]
    choices += [among for name in ("anyOf", "oneOf") if (among := _listed(schema, name))]
    for chosen in islice(product(*choices), _MOST_SHAPES):
        found = [islice(_shapes(one, root, left), _MOST_SHAPES) for one in chosen if next(left, 0)]
        for parts in islice(product(*found), _MOST_SHAPES):
            yield _joined([own, *parts])


def _listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    among = schema.get(name)
    return among if isinstance(among, list) else []


def _joined(shapes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {"properties": {}, "required": []}
    for shape in shapes:
        whole["properties"] = {**whole["properties"], **shape["properties"]}
        whole["required"] = [*whole["required"], *shape["required"]]
        if "additionalProperties" in shape:
            # Nothing more, where one of them allows nothing more.
            whole["additionalProperties"] = shape["additionalProperties"] and whole.get(
                "additionalProperties", True
            )
    return whole


_NEW_LINE = quoted("\n")


def _value(schema: Any, root: Mapping[str, Any]) -> str:
    """The rest of a rule for a value and the tag after it."""
    closing = f"{_NEW_LINE} {quoted(_CLOSING)} {_NEW_LINE}"
    kinds = _kinds(schema, root)
    if kinds and "string" not in kinds:
        others = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return f": {embedded({**schema, **others}, TIGHT)} {closing}"
    if _texts(schema, root) is not None and (choices := list(_choices(schema, root))):
        return f": ({' | '.join(choices)}) {closing}"
    text = next(one for one in _branches(schema, root) if _free(one))
    least, most = text.get("minLength", 0), text.get("maxLength", "")
    return _text(f"{{{least},{most}}}" if least or most != "" else "*")


def _choices(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """Ways to write a value none of whose kinds is just any text."""
    for one in _branches(schema, root):
        values = _values(one)
        if values is None:
            others = {name: root[name] for name in ("$defs", "definitions") if name in root}
            yield embedded({**one, **others}, TIGHT)
            continue
        for value in values:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if _CLOSING not in shown:
                yield quoted(shown)


def _branches(
    schema: Any, root: Mapping[str, Any], left: Iterator[int] | None = None
) -> Iterator[Mapping[str, Any]]:
    """The schemas of which a value fits one. ``left``: how many more may be looked at."""
    left = iter(range(_MOST_LOOKED_AT, 0, -1)) if left is None else left
    schema = _followed(schema, root)
    among = _listed(schema, "anyOf") or _listed(schema, "oneOf")
    if not among or "type" in schema:
        yield schema
        return
    for one in among:
        if not next(left, 0):
            yield {}  # it may be anything
            return
        yield from _branches(one, root, left)


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and values else None


def _free(schema: Mapping[str, Any]) -> bool:
    """Whether a value may be text that the schema does not list."""
    kinds = _own_kinds(schema)
    return _values(schema) is None and (not kinds or "string" in kinds)


def _texts(schema: Any, root: Mapping[str, Any]) -> set[str] | None:
    """The only texts that a value may be; ``None`` if it may be others."""
    found: set[str] = set()
    for one in _branches(schema, root):
        if _free(one):
            return None
        found.update(value for value in _values(one) or () if isinstance(value, str))
    return found


def _text(times: str) -> str:
    """It ends at the first tag that closes it."""
    return rf"[lazy]: /(?s:.{times})\n<\/parameter>\n/"


def _kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """The types that a value may have; none if anything may be."""
    found = [_own_kinds(one) for one in _branches(schema, root)]
    return set().union(*found) if all(found) else set()


def _own_kinds(schema: Mapping[str, Any]) -> set[str]:
    if isinstance(kinds := schema.get("type"), str):
        return {kinds}
    if isinstance(kinds, list):
        return {kind for kind in kinds if isinstance(kind, str)}
    return {_KINDS.get(type(value), "null") for value in _values(schema) or ()}


_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


_BESIDE = frozenset({"allOf", "default", "description", "examples", "title"})
"""How a reference is written that has a description: as all of one."""


def _followed(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(_REFERENCES):
        if not isinstance(schema, Mapping):
            break
        place = schema.get("$ref")
        if place is None and len(joined := _listed(schema, "allOf")) == 1 and not schema.keys() - _BESIDE:
            schema = joined[0]
            continue
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
