from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cascade.json_schema import allows

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "boss": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANN = {"name": "Ann", "age": 30}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (ANN, True),
        ({**ANN, "age": 30.0}, True),
        ({**ANN, "tags": ["a", "b"], "boss": None}, True),
        ({**ANN, "boss": {**ANN, "boss": ANN}}, True),
        ({"name": "Ann"}, False),
        ({**ANN, "name": ""}, False),
        ({**ANN, "age": "30"}, False),
        ({**ANN, "age": 30.5}, False),
        ({**ANN, "age": True}, False),
        ({**ANN, "age": 150}, False),
        ({**ANN, "age": -1}, False),
        ({**ANN, "tags": ["c"]}, False),
        ({**ANN, "tags": ["a"] * 3}, False),
        ({**ANN, "boss": {**ANN, "boss": {"name": "Bob"}}}, False),
        ({**ANN, "more": 1}, False),
        ([ANN], False),
        ("Ann", False),
    ],
)
def test_an_object(value: Any, fits: bool) -> None:
    assert allows(PERSON, value) is fits


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (False, [], [1, None]),
        ({"type": ["string", "null"]}, ["a", None], [1, False]),
        ({"const": 1}, [1], [True, 2]),
        ({"enum": [None, "x"]}, [None, "x"], ["y", 0]),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [1, 3], [0, 4]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, [0, 4], [2]),
        ({"not": {"type": "null"}}, [1], [None]),
        ({"exclusiveMinimum": 1, "maximum": 2}, [2, "a"], [1, 3]),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "null"}}, [[], ["a"], ["a", None]], [[1], ["a", 1]]),
        ({"minItems": 1}, [[0], "a"], [[]]),
        ({"maxLength": 2, "minLength": 1}, ["ab"], ["", "abc"]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, [None], [1]),
        ({"additionalProperties": {"type": "null"}}, [{"a": None}], [{"a": 1}]),
        ({"additionalProperties": False, "patternProperties": {"^x": {}}}, [{"x1": 1}], []),
    ],
)  # fmt: skip
def test_keywords(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [allows(schema, value) for value in good] == [True] * len(good)
    assert [allows(schema, value) for value in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": 7, "required": 7, "properties": [], "items": 7, "enum": 7, "minLength": "x", "anyOf": {}},
        {"type": "colour"},
    ],
    ids=["elsewhere", "nowhere", "itself", "pattern", "nonsense", "unknown-type"],
)
def test_what_cannot_be_told_is_let_pass(schema: Any) -> None:
    expected = "type" not in schema or schema["type"] != 7
    assert allows(schema, "a" * 100 + "!") is expected


def test_work_is_bounded() -> None:
    knot: Any = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "items": {"$ref": "#"}}
    start = time.process_time()
    assert allows({"allOf": [{"anyOf": [{"type": "null"}] * 100}] * 1000}, 1) is False
    assert (
        allows({"allOf": [{"oneOf": [{"type": "integer"}] * 100 + [{"const": 1}]}] * 1000}, [1] * 9) is False
    )
    assert allows(knot, [[[1]]]) is True
    assert allows({"items": {"type": "integer"}}, [1] * 100_000) is True
    assert time.process_time() - start < 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
keywords = st.sampled_from(
    [*PERSON, "items", "anyOf", "allOf", "oneOf", "not", "$ref", "enum", "minimum", "maxLength"]
)


@given(schema=st.dictionaries(keywords, json_values | st.sampled_from(["#", "#/properties", "string"]), max_size=5),
       value=json_values)  # fmt: skip
def test_no_schema_and_no_value_breaks_it(schema: Any, value: Any) -> None:
    assert allows(schema, value) in (True, False)
