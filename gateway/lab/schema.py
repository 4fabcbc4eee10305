"""JSON Schema (2020-12) of a policy's files, out of the types that read them and the reference that explains them.

It is for editors and CI: whatever ``tollgate check`` takes it takes, and it refuses what can be seen in one file
without knowing the others. So no key of the top level is required, and a value may be a variable. Keywords that came
after draft 7 are left out, as editors lag behind; ``$defs`` is found by its pointer.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator, SecretStr, Strict
from pydantic.fields import FieldInfo

from gateway.lab.reference import PAGE, Key, Row, rows
from gateway.lab.schema_rules import REQUIRED_ELSEWHERE, RULES, VARIABLE, one_of
from gateway.policy.fields import kind_of, models_in
from gateway.policy.schema import Policy
from gateway.policy.schema.guards import GUARD_KINDS
from gateway.policy.schema.values import Form

FILE = "policy.schema.json"
"""What the schema is called beside a policy; its loader reads no JSON."""
Schema = dict[str, Any]
_LAX_BOOL = (
    "^([Yy]|[Yy][Ee][Ss]|[Nn]|[Nn][Oo]|[Oo][Nn]|[Oo][Ff][Ff]|[Tt]|[Tt][Rr][Uu][Ee]|[Ff]|[Ff][Aa][Ll][Ss][Ee]"
    "|[01])$"
)
_BOUNDS: Mapping[type, tuple[str, str]] = {
    Ge: ("minimum", "ge"),
    Gt: ("exclusiveMinimum", "gt"),
    Le: ("maximum", "le"),
    Lt: ("exclusiveMaximum", "lt"),
}


def policy_schema() -> Schema:
    """Of one file of a policy folder."""
    writer = _Writer(rows(PAGE.read_text("utf-8")))
    top = writer.properties(Policy, "", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A file of a Tollgate policy",
        "type": "object",
        "properties": top,
        "additionalProperties": False,
        "$defs": dict(sorted(writer.definitions.items())),
    }


class _Writer:
    """Writes the schema of each type once."""

    def __init__(self, reference: Mapping[Key, Row]) -> None:
        self._reference = reference
        self.definitions: dict[str, Schema] = {}

    def properties(self, model: type[BaseModel], prefix: str, kind: str | None) -> dict[str, Schema]:
        found = {}
        for name, field in model.model_fields.items():
            path = f"{prefix}.{name}" if prefix else name
            schema = self._of(field.rebuild_annotation(), path, kind)
            row = self._row(path, kind)
            about: Schema = {"description": row.description} if row.description else {}
            if row.has_default:
                about["default"] = row.value
            found[name] = {**about, **schema}
        return found

    def _row(self, path: str, kind: str | None) -> Row:
        return self._reference.get(Key(kind, path)) or self._reference[Key(None, path)]

    def _model(self, model: type[BaseModel], path: str, kind: str | None) -> Schema:
        name, kind = model.__name__, kind_of(model) or kind
        if name in self.definitions:
            self._describe(self.definitions[name]["properties"], path, kind)
        else:
            self.definitions[name] = self._written(model, path, kind)
        return {"$ref": f"#/$defs/{name}"}

    def _describe(self, properties: Mapping[str, Schema], path: str, kind: str | None) -> None:
        """The reference explains a key once, which need not be where it comes first."""
        for name, schema in properties.items():
            said = self._row(f"{path}.{name}", kind).description
            if said and "description" not in schema:
                schema["description"] = said

    def _written(self, model: type[BaseModel], path: str, kind: str | None) -> Schema:
        elsewhere = {"kind", *REQUIRED_ELSEWHERE.get(model, ())}
        schema: Schema = {
            "type": "object",
            "properties": self.properties(model, path, kind),
            "additionalProperties": False,
        }
        if required := [
            name
            for name, field in model.model_fields.items()
            if field.is_required() and name not in elsewhere
        ]:
            schema["required"] = required
        if rules := [
            rule for known, said in RULES.items() if issubclass(model, known) for rule in said(model)
        ]:
            schema["allOf"] = rules
        return schema

    def _of(self, annotation: Any, path: str, kind: str | None) -> Schema:
        bare, notes = _unwrapped(annotation)
        origin, arguments = get_origin(bare), get_args(bare)
        if path == "guards":
            return self._guards(arguments[1])
        if _is_union(bare):
            members = models_in(bare)
            if len(members) > 1:
                return self._by_kind(members, path)
            notes = tuple(note for note in notes if not isinstance(note, BeforeValidator))
            members_noted = [Annotated[(one, *notes)] if notes else one for one in arguments]
            return _any_of([self._of(one, path, kind) for one in members_noted])
        if origin is dict:
            return self._mapping(arguments, notes, path, kind)
        if origin is tuple:
            return self._list(arguments, notes, path, kind)
        if origin is Literal:
            return one_of(*arguments)
        if isinstance(bare, type) and issubclass(bare, BaseModel):
            return self._model(bare, path, kind)
        return _scalar(bare, notes)

    def _mapping(
        self, arguments: tuple[Any, ...], bounds: Sequence[Any], path: str, kind: str | None
    ) -> Schema:
        names, notes = _unwrapped(arguments[0])
        value = self._of(arguments[1], f"{path}.<name>", kind)
        if get_origin(names) is Literal:
            return {
                "type": "object",
                "properties": dict.fromkeys(get_args(names), value),
                "patternProperties": {VARIABLE: value},
                "additionalProperties": False,
            }
        schema: Schema = {"type": "object", "additionalProperties": value}
        if pattern := _pattern(notes):
            schema["propertyNames"] = {"pattern": pattern}
        if "." in path:  # what stands at the top may be in several files
            for one in bounds:
                if isinstance(one, MinLen):
                    schema["minProperties"] = one.min_length
                elif isinstance(one, MaxLen):
                    schema["maxProperties"] = one.max_length
        return schema

    def _list(self, arguments: tuple[Any, ...], notes: Sequence[Any], path: str, kind: str | None) -> Schema:
        schema: Schema = {"type": "array", "items": self._of(arguments[0], f"{path}[]", kind)}
        if arguments[-1] is not Ellipsis:
            return {**schema, "minItems": len(arguments), "maxItems": len(arguments)}
        least = [note.min_length for note in notes if isinstance(note, MinLen)]
        return {**schema, "minItems": least[0]} if least else schema

    def _by_kind(self, members: Sequence[type[BaseModel]], path: str) -> Schema:
        """Of the kind that is written: an editor then tells what is wrong with that one, not that none fits."""
        kinds = {str(kind_of(member)): member for member in members}
        return {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": one_of(*kinds)},
            "allOf": [
                {
                    "if": {"required": ["kind"], "properties": {"kind": {"const": kind}}},
                    "then": self._model(member, path, kind),
                }
                for kind, member in kinds.items()
            ],
        }

    def _guards(self, guard: Any) -> Schema:
        """A guard that is called by its kind need not say its kind."""
        bare, _ = _unwrapped(guard)
        members = models_in(bare)
        self.definitions["Guard"] = self._by_kind(members, "guards.<name>")
        any_kind = {"$ref": "#/$defs/Guard"}
        kinds = {str(kind_of(member)): member for member in members}
        return {
            "type": "object",
            "properties": {
                kind: {
                    "if": {"required": ["kind"]},
                    "then": any_kind,
                    "else": self._model(kinds[kind], "guards.<name>", kind),
                }
                for kind in GUARD_KINDS
            },
            "additionalProperties": any_kind,
        }


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _unwrapped(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its notes, and these; where a validator makes it of another, the type that is written."""
    notes: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for note in more:
            if isinstance(note, BeforeValidator) and _is_union(note.json_schema_input_type):
                annotation = note.json_schema_input_type
            notes += note.metadata if isinstance(note, FieldInfo) else [note]
    return annotation, tuple(notes)


def _scalar(bare: Any, notes: Sequence[Any]) -> Schema:
    if bare is Any:
        return {}
    if bare is type(None):
        return {"type": "null"}
    pattern = _pattern(notes)
    if bare in (str, SecretStr, datetime):
        return _text(pattern)
    if pattern is not None:
        return {"type": ["string"], "pattern": pattern}
    strict = any(isinstance(note, Strict) for note in notes)
    if bare is bool:
        if strict:
            return {"type": ["boolean", "string"], "pattern": VARIABLE}
        return {
            "type": ["boolean", "string", "integer"],
            "pattern": f"{_LAX_BOOL}|{VARIABLE}",
            "minimum": 0,
            "maximum": 1,
        }
    if bare not in (int, float) or not strict:
        raise TypeError(f"no schema is known of {bare} with {notes}")
    return {
        "type": ["integer" if bare is int else "number", "string"],
        **dict(_bounds(notes)),
        "pattern": VARIABLE,
    }


def _text(pattern: str | None) -> Schema:
    """It is taken as it is written: `model: 1.10` names the model "1.10"."""
    if pattern is None:
        return {"type": ["string", "number", "boolean"]}
    fits = re.compile(pattern).search
    also = [name for name, sample in (("number", "2030"), ("boolean", "true")) if fits(sample)]
    bound = {"minimum": 0} if "number" in also and not fits("-5") else {}
    return {"type": ["string", *also], "pattern": pattern, **bound}


def _bounds(notes: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for note in notes:
        if (bound := _BOUNDS.get(type(note))) is not None:
            keyword, attribute = bound
            yield keyword, getattr(note, attribute)


def _pattern(notes: Sequence[Any]) -> str | None:
    """The last form is the narrowest."""
    forms = [note.pattern for note in notes if isinstance(note, Form)]
    return f"{forms[-1]}|{VARIABLE}" if forms else None


def _any_of(options: Sequence[Schema]) -> Schema:
    """One of them; where one is nothing but null, another says so itself if it can."""
    null = {"type": "null"}
    others = [one for one in options if one != null]
    if len(others) == 1 and null in options and isinstance(others[0].get("type"), list):
        return {**others[0], "type": [*others[0]["type"], "null"]}
    return {"anyOf": list(options)} if len(options) > 1 else options[0]
