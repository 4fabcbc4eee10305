"""What is refused before a request is accepted, and in which words."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.core.sampling_params import Grammar
from engine.grammar.language import MAX_SOURCE, check, choice, definition, embedded, lark, limits, quoted


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"type": "object"}'),
        Grammar("json_schema", "{}"),
        Grammar("regex", r"\d{4}-\d\d"),
        Grammar("regex", ""),
        Grammar("lark", '%llguidance {"no_forcing": false}\nstart: "a"'),
        Grammar("regex", "a/b\n[/]é|c"),
        choice(["yes", "no", 'a "quoted" /one/\n', "Grüße 😀", "\\"]),
        lark('start: "a" | foo\nfoo: /[0-9]+/'),
        lark('root ::= "a" | foo\nfoo ::= [0-9]+'),
        lark("start[max_tokens=5]: /.*/"),
        choice(["a", "ab", "\x7f", "\x00"]),
        choice([f"choice {i}" for i in range(5000)]),
        Grammar("lark", f"start: {quoted('<x>')} {embedded({'type': 'integer'})} {embedded(True)}"),
        Grammar("json_schema", '{"enum": ["north", "south"]}', prefix='"no'),
    ],
)
def test_takes(grammar: Grammar) -> None:
    assert check(grammar) is None


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("json_schema", '{"type": "strin"}'), "strin"),
        (Grammar("json_schema", '{"not": {}, "type": "object"}'), "not"),
        (Grammar("json_schema", '{"$ref": "https://example.com/a.json"}'), "does not fetch"),
        (Grammar("json_schema", "[1]"), "must be an object"),
        (Grammar("json_schema", '{"enum": []}'), "Unsatisfiable"),
        (Grammar("regex", "a("), "unclosed group"),
        (Grammar("regex", r"(a)\1"), "backreferences are not supported"),
        (Grammar("lark", "start: foo"), 'unknown name: "foo"'),
        (Grammar("lark", "start: <|nothing|>"), "unknown special token"),
        (Grammar("regex", "a" * (MAX_SOURCE + 1)), str(MAX_SOURCE)),
        (Grammar("json_schema", '{"enum": ["north"]}', prefix='"so'), "does not begin as it demands"),
        (Grammar("json_schema", '{"x-guidance": 5}'), "integer `5`"),
        (Grammar("json_schema", '{"$ref": "#"}'), "recursive without an end"),
        (Grammar("json_schema", '{"items": ' * 500 + "true" + "}" * 500), "recursion limit"),
    ],
)
def test_refuses_and_says_why(grammar: Grammar, reason: str) -> None:
    found = check(grammar)
    assert found is not None
    assert reason in found
    assert "\n" not in found
    assert len(found) <= 500


@pytest.mark.parametrize("source", ['root ::= "a', "root ::= ((("])
def test_a_gbnf_that_breaks_off_is_no_grammar(source: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        lark(source)


PATTERNS = {f"p{i}": {"pattern": f"^(a|b)*{i}.{{9}}$"} for i in range(1500)}
MANY = [{"required": [f"{i}"]} for i in range(9)]
REFERRING: dict[str, Any] = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 50} for i in range(8)}
REFERRING["d8"] = {"type": "null"}
DOUBLING = "".join(f"r{i}: r{i + 1} r{i + 1} | r{i + 1}\n" for i in range(2000))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", json.dumps({"enum": [f"{i:06}" for i in range(12_000)]})),
        Grammar("json_schema", json.dumps({"properties": PATTERNS})),
        Grammar("json_schema", json.dumps({"allOf": [{"anyOf": MANY}] * 9})),
        Grammar("json_schema", json.dumps({"$ref": "#/$defs/d0", "$defs": REFERRING})),
        Grammar("regex", "(.*a){1,100}" * 500),
        Grammar("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"),
        Grammar("regex", "|".join(f"(a|b)*{i}.{{1,50}}" for i in range(3000))),
        Grammar("lark", f'start: r0 "a"\n{DOUBLING}r2000: "b"'),
    ],
    ids=range(8),
)
def test_hostile_grammars_cost_little(grammar: Grammar) -> None:
    began = time.process_time()
    check(grammar)
    assert time.process_time() - began < 3


def optional(count: int, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    names = {f"p{i}": {"type": "integer"} for i in range(count)}
    return {"type": "object", "properties": names, "required": list(needed), "additionalProperties": False}


CROWDED = {
    "at the top": (optional(2000), '{"p0": 1}'),
    "just": (optional(501), '{"p0": 1}'),
    "below": ({"type": "object", "properties": {"a": optional(1000)}, "required": ["a"]}, '{"a": {"p0": 1}}'),
    "in a list": ({"type": "array", "items": optional(1000)}, '[{"p0": 1}]'),
    "referred to": ({"$ref": "#/$defs/a", "$defs": {"a": optional(600)}}, '{"p0": 1}'),
    "together": ({"anyOf": [optional(300), optional(300)]}, '{"p0": 1}'),
    "of which the first is needed": (optional(1200, ("p0",)), '{"p0": 1 , "p4": 1}'),
    "of which the last is needed": (optional(800, ("p799",)), '{"p0": 1'),
}
ROOMY = {
    "just": (optional(500), '{"p0": 1, "p499": 1}'),
    "the first needed": (optional(900, ("p0",)), '{"p0": 1 , "p899": 1 }'),
    "the last needed": (optional(600, ("p599",)), '{"p0": 1 , "p599": 1 }'),
    "two runs": (optional(800, ("p400",)), '{"p0": 1, "p400": 1, "p799": 1}'),
    "all needed": (optional(1000, tuple(f"p{i}" for i in range(1000))), '{"p0": 1'),
    "two objects": ({"type": "array", "prefixItems": [optional(400)] * 2}, '[{"p0": 1}, {"p399": 1}]'),
}


@pytest.mark.parametrize("name", CROWDED)
def test_objects_of_too_many_optional_properties_are_refused_beforehand(name: str) -> None:
    """Not when the answer is there, as they were."""
    schema, text = CROWDED[name]
    reason = check(Grammar("json_schema", json.dumps(schema)))
    assert reason is not None and "optional properties" in reason
    assert not follows(schema, text)


@pytest.mark.parametrize("name", ROOMY)
def test_objects_of_many_properties_are_followed(name: str) -> None:
    schema, text = ROOMY[name]
    assert check(Grammar("json_schema", json.dumps(schema), prefix=text)) is None
    assert follows(schema, text)


def follows(schema: dict[str, Any], text: str) -> bool:
    grammar, tokenizer = Grammar("json_schema", json.dumps(schema)), LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, definition(grammar), log_level=0, limits=limits(grammar.kind))
    return matcher.consume_tokens(tokenizer.tokenize_str(text)) and not matcher.is_error()
