"""What is done to schemas before they become grammars."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.core.sampling_params import Grammar
from engine.grammar.language import check, definition
from engine.grammar.schema import prepared

S = {"type": "string"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def closed(schema: dict[str, Any]) -> bool:
    return schema.get("additionalProperties") is False


def test_objects_that_name_their_properties_are_closed_at_every_depth() -> None:
    inner = an_object(b=S)
    schema = an_object(a=inner, list={"type": "array", "items": inner}, one={"anyOf": [inner, S]})
    schema["$defs"] = {"inner": inner}
    found = prepared(schema)
    properties = found["properties"]
    places = [
        found,
        properties["a"],
        properties["list"]["items"],
        properties["one"]["anyOf"][0],
        found["$defs"]["inner"],
    ]
    assert all(closed(place) for place in places)
    assert "additionalProperties" not in schema, "the caller's own is left as it is"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        an_object(),
        {**an_object(a=S), "additionalProperties": True},
        {**an_object(a=S), "additionalProperties": S},
        {**an_object(a=S), "patternProperties": {"^x": S}},
        {**an_object(a=S), "required": ["a", "undeclared"]},
        {**an_object(a=S), "minProperties": 2},
        {**an_object(a=S), "anyOf": [an_object(b=S), {"required": ["c"]}]},
        {"allOf": [an_object(a=S), an_object(b=S)]},
        {"$defs": {"base": an_object(a=S)}, "$ref": "#/$defs/base", "properties": {"b": S}},
    ],
)
def test_what_may_have_more_properties_is_left_open(schema: dict[str, Any]) -> None:
    assert prepared(schema) == schema


@pytest.mark.parametrize(
    "nothing",
    [
        {"uniqueItems": False},
        {"propertyNames": {}},
        {"propertyNames": {"type": "string"}},
        {"unevaluatedProperties": True},
        {"dependentRequired": {}},
        {"format": "made-up"},
        {"then": {"required": ["a"]}},
        {"if": {"required": ["a"]}},
    ],
)
def test_words_without_effect_are_no_reason_to_refuse(nothing: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"x": {"type": ["string", "object"], **nothing}}}
    assert check(Grammar("json_schema", json.dumps(schema))) is not None, "or else nothing needs to be done"
    assert check(Grammar("json_schema", json.dumps(prepared(schema)))) is None


@pytest.mark.parametrize(
    "restriction",
    [
        {"type": "array", "uniqueItems": True},
        {"not": S},
        {"if": S, "then": {"maxLength": 3}},
        {"type": "object", "propertyNames": {"pattern": "^a"}},
        {"type": "array", "contains": S},
    ],
)
def test_restrictions_stay(restriction: dict[str, Any]) -> None:
    assert prepared(an_object(x=restriction))["properties"]["x"] == restriction


def test_names_of_properties_and_values_are_no_keywords() -> None:
    odd = {"enum": [{"uniqueItems": False, "properties": {"a": 1}}]}
    schema = an_object(uniqueItems=odd, format={"const": {"format": "made-up"}})
    assert prepared(schema) == {**schema, "additionalProperties": False}


def test_strings_and_whole_numbers_without_a_bound_get_one() -> None:
    bounded = [
        {**S, "maxLength": 5000},
        {**S, "pattern": "^a+$"},
        {**S, "format": "date"},
        {**S, "enum": ["x"]},
        {"type": "integer", "minimum": 3},
    ]
    schema = {"type": "array", "prefixItems": [S, {**S, "minLength": 90}, {"type": "integer"}, *bounded]}
    first, second, third, *rest = prepared(schema, longest=70)["prefixItems"]
    assert first == {**S, "maxLength": 70}
    assert second == {**S, "minLength": 90, "maxLength": 90}
    assert third["maximum"] > 2**62 and third["minimum"] < -(2**62)
    assert rest == bounded
    assert prepared(schema) == schema
    assert check(Grammar("json_schema", json.dumps(prepared(schema, longest=100_000)))) is None


@pytest.mark.parametrize(
    ("form", "text", "most"),
    [("time", "09:30:00", 9), ("date-time", "2027-03-14T09:30:00", 9), ("uri", "http://example.org/", None)],
)
def test_strings_of_a_format_come_to_an_end(form: str, text: str, most: int | None) -> None:
    """Behind ``09:30:00`` no string may end, as the offset is missing, and a small model goes on with zeros."""
    grammar = Grammar("json_schema", json.dumps(prepared({**S, "format": form}, longest=90)))
    tokenizer = LLTokenizer("byte")

    def may_follow(text: str) -> set[str]:
        matcher = LLMatcher(tokenizer, definition(grammar))
        assert matcher.consume_tokens(tokenizer.tokenize_str(f'"{text}'))
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return {chr(at) for at in np.flatnonzero(np.unpackbits(bits, bitorder="little")) if at < 128}

    if most is None:
        assert may_follow(text + "0" * (90 - len(text))) == {'"'}
    else:
        assert "0" in may_follow(f"{text}.{'0' * (most - 1)}")
        assert may_follow(f"{text}.{'0' * most}") == {"+", "-", "Z", "z"} & may_follow(text)
        assert may_follow(f"{text}Z") == {'"'}


@pytest.mark.parametrize(
    ("name", "fits", "too_much"),
    [
        ("maxLength", '"ab"', '"abc"'),
        ("minLength", '"ab"', '"a"'),
        ("maxItems", "[1, 2]", "[1, 2, 3]"),
        ("minItems", "[1, 2]", "[1]"),
        ("maxProperties", '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "c": 3}'),
        ("minProperties", '{"a": 1, "b": 2}', '{"a": 1}'),
    ],
)
def test_counts_may_be_written_with_a_point(name: str, fits: str, too_much: str) -> None:
    kind = {"L": "string", "I": "array", "P": "object"}[name[3]]
    found = json.dumps(prepared({"properties": {"x": {"type": kind, name: 2.0}}, "required": ["x"]}))
    assert check(Grammar("json_schema", found, prefix=f'{{"x": {fits}}}')) is None
    assert check(Grammar("json_schema", found, prefix=f'{{"x": {too_much}}}')) is not None
    assert prepared({name: 2.5}) == {name: 2.5}
    objects = {"properties": {"a": {}}, "minProperties": 1.0}
    assert prepared(objects)["additionalProperties"] is False
