"""What is refused before a request is accepted, and in which words."""

from __future__ import annotations

import json
import time

import pytest

from engine.core.sampling_params import Grammar
from engine.grammar.language import MAX_SOURCE, check, choice, embedded, lark, quoted


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
DOUBLING = "".join(f"r{i}: r{i + 1} r{i + 1} | r{i + 1}\n" for i in range(2000))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", json.dumps({"enum": [f"{i:06}" for i in range(12_000)]})),
        Grammar("json_schema", json.dumps({"properties": PATTERNS})),
        Grammar("json_schema", json.dumps({"allOf": [{"anyOf": MANY}] * 9})),
        Grammar("regex", "(.*a){1,100}" * 500),
        Grammar("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"),
        Grammar("regex", "|".join(f"(a|b)*{i}.{{1,50}}" for i in range(3000))),
        Grammar("lark", f'start: r0 "a"\n{DOUBLING}r2000: "b"'),
    ],
    ids=range(7),
)
def test_hostile_grammars_cost_little(grammar: Grammar) -> None:
    began = time.process_time()
    check(grammar)
    assert time.process_time() - began < 3
