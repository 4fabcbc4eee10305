"""Strict tools that need not be called: text is free, and whatever call a model begins fits its schema."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from engine.core.sampling_params import Grammar, SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.grammar.language import check, quoted
from engine.grammar.masks import GrammarManager
from engine.server.tokenizer import Tokenizer as ServerTokenizer
from engine.server.tools import (
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    PHI,
    PHI4_MINI,
    QWEN3_CODER,
    Format,
)
from engine.server.tools_parser import ToolParser
from engine.server.tools_strict import strict_grammar
from tests.engine.tiny import make_tokenizer

EOS, VOCAB = 1, 352
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
STRICT = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
OPEN = {"type": "function", "function": {"name": "now", "parameters": PARAMETERS}}
TOOLS = [STRICT, OPEN]
SCHEMAS = {"weather": PARAMETERS, "now": PARAMETERS}
HEAD = '{"name": "weather", "arguments":'
CASES = {
    "hermes": (HERMES, "I look.\n<tool_call>", ""),
    "hermes, after another sign": (HERMES, "<tool_box>.<tool_call>", ""),
    "hermes in a fence": (HERMES, f"```json\n{HEAD}", "}\n```"),
    "hermes in tags": (HERMES, f"<tools>\n{HEAD}", "}\n</tools>"),
    "hermes alone": (HERMES, ' \n{ "name" : "Weather" ,"arguments" :', "}"),
    "hermes, doubled": (HERMES, f"{{{HEAD}", "}}"),
    "hermes in a list": (HERMES, '[{"name": "weather", "parameters":', "}]"),
    "hermes as OpenAI has it": (HERMES, f'{{"type": "function", "function": {HEAD}', "}}"),
    "llama": (LLAMA, "<|python_tag|>", ""),
    "llama alone": (LLAMA, '{"name": "weather", "parameters":', "}"),
    "mistral": (MISTRAL, "[TOOL_CALLS]", ""),
    "mistral with arguments": (MISTRAL_ARGS, "[TOOL_CALLS]", ""),
    "phi": (PHI, "Well.<|tool_call|>", ""),
    "phi4-mini": (PHI4_MINI, "functools", ""),
    "qwen3-coder": (QWEN3_CODER, "Well.\n<tool_call>", ""),
    "qwen3-coder without the tag": (QWEN3_CODER, "Well.\n<function=", ""),
    "gpt-oss": (HARMONY, "<|channel|>commentary to=functions", ""),
    "gpt-oss, recipient first": (HARMONY, " to=functions.", ""),
}
MARKS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|tool_call|>",
        "<|/tool_call|>",
    ),
    *("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<think>", "</think>"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strict")
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Model:
    """Says what it is made to, and then at random what it may."""

    def __init__(self, folder: Path, grammar: Grammar) -> None:
        self.grammars = GrammarManager(folder, VOCAB)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.params = SamplingParams(max_tokens=999, stop_token_ids=frozenset({EOS}), grammar=grammar)
        self.id = 1
        self.tokens: list[int] = []

    def masks(self, drafts: list[int] | None = None) -> dict[int, set[int]]:
        """By row, what is allowed; a row without a mask is left out."""
        prompt, drafts = [5, 6], drafts or []
        rows = [
            SamplingRow(self.id, self.params, prompt + self.tokens, len(prompt), drafts[:i])
            for i in range(len(drafts) + 1)
        ]
        pending = self.grammars.start(rows)
        if pending is None:
            return {}
        found, bits = pending.wait()
        assert not self.grammars.failed
        unpacked = np.unpackbits(bits.numpy().view(np.uint8), axis=1, bitorder="little")
        return {row: set(np.flatnonzero(each).tolist()) for row, each in zip(found, unpacked, strict=True)}

    def say(self, text: str) -> int:
        """How many of the tokens were masked. Fails where one is forbidden."""
        masked = 0
        for token in self.tokenizer.encode(text, add_special_tokens=False).ids:
            if masks := self.masks():
                masked += 1
                assert token in masks[0], f"{self.tokenizer.id_to_token(token)!r} of {text!r}"
            self.tokens.append(token)
        return masked

    def babble(self, chance: random.Random) -> str:
        """To where it may end, or to where it is long."""
        start = len(self.tokens)
        while len(self.tokens) < 250 and EOS not in (allowed := self.masks()[0]):
            self.tokens.append(chance.choice(sorted(allowed)))
        return self.shown(start)

    def shown(self, start: int) -> str:
        names = [self.tokenizer.id_to_token(token) for token in self.tokens[start:]]
        return self.tokenizer.decoder.decode(names)


def calls_of(parser: ToolParser, texts: Iterator[str]) -> list[tuple[str, Any]]:
    found: list[list[str]] = []
    parts = [parser.push(text) for text in texts]
    for delta in [call for part in [*parts, parser.finish(cut=False)] for call in part.calls]:
        if delta.name is not None:
            found.append([delta.name, ""])
        found[-1][1] += delta.arguments
    return [(name, json.loads(arguments)) for name, arguments in found]


def grammar_of(folder: Path, format: Format, tools: list[dict[str, Any]] = TOOLS) -> Grammar:
    marker: Callable[[str], str] = ServerTokenizer(folder).marker
    assert check(strict_grammar(format, tools, 8, quoted)) is None
    return strict_grammar(format, tools, 8, marker)


@pytest.mark.parametrize(("format", "begun", "rest"), CASES.values(), ids=CASES)
def test_a_call_that_was_begun_fits_its_schema(folder: Path, format: Format, begun: str, rest: str) -> None:
    grammar = grammar_of(folder, format)
    seen = set()
    for seed in range(5):
        model = Model(folder, grammar)
        model.say(begun)
        text = begun + model.babble(random.Random(seed)) + rest
        model.say(rest)
        if format is HARMONY:
            # As the channels' reader passes it on.
            text = f"<|channel|>commentary to=functions{text[text.index('functions') + len('functions') :]}"
        parser = ToolParser(
            format, list(SCHEMAS), schemas=SCHEMAS, strict={"weather"}, unmarked=bool(rest), whole=True
        )
        calls = calls_of(parser, iter([text]))
        # Of the other tool's arguments, which may be long, a random model makes no end.
        assert calls or "now" in text, text
        for name, arguments in calls:
            seen.add(name)
            if name == "weather":
                jsonschema.validate(arguments, PARAMETERS)
    assert "weather" in seen


@pytest.mark.parametrize("format", [HERMES, QWEN3_CODER, MISTRAL, HARMONY], ids=lambda f: f.name)
def test_text_without_a_sign_is_free_and_costs_no_mask(folder: Path, format: Format) -> None:
    model = Model(folder, grammar_of(folder, format))
    text = 'Say <tool, <func or "[TOOL" in `{"name": "weather"}`, to=functions.<|end|><|start|>assistant'
    assert model.say(text) == 0
    assert model.grammars.propose([], {}) == {}


def test_an_answer_in_json_is_no_call(folder: Path) -> None:
    model = Model(folder, grammar_of(folder, HERMES))
    text = '```json\n{"name": "weather", "city": {"arguments": 3}, "list": [{"name": "other", "arguments": 1}]}\n```'
    assert model.say(text) > 0
    assert EOS in model.masks()[0]


@pytest.mark.parametrize("plain", [False, True], ids=["a token", "spelled"])
def test_behind_a_marker_only_offered_tools_are_named(folder: Path, tmp_path: Path, plain: bool) -> None:
    if plain:
        make_tokenizer().save(str(tmp_path / "tokenizer.json"))
        folder = tmp_path
    model = Model(folder, grammar_of(folder, HERMES))
    model.say(
        'Well.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 7}}\n</tool_call>'
    )
    assert EOS in model.masks()[0]
    model.say(' And:\n<tool_call>\n{"name": "')
    named = {model.tokenizer.id_to_token(token)[0] for token in model.masks()[0]}
    assert named == {"w", "n"}


@pytest.mark.parametrize("begin", ["", "<think>"], ids=["opened", "not opened"])
def test_what_is_thought_is_free(folder: Path, begin: str) -> None:
    grammar = grammar_of(folder, HERMES)
    assert grammar.trigger is not None
    trigger = replace(grammar.trigger, thought=(begin, "</think>"))
    model = Model(folder, replace(grammar, trigger=trigger))
    assert model.say(f"{begin}A <tool_call> and {{<tool_call>.</think>") == 0
    assert model.say('\n\n{"name"') > 0
    model = Model(folder, replace(grammar, trigger=trigger))
    if begin:
        assert model.say("<tool_call>") == 0
        assert model.masks()[0]


def test_draft_tokens_that_meet_the_trigger_are_masked_from_there_on(folder: Path) -> None:
    model = Model(folder, grammar_of(folder, HERMES))
    ids = partial(model.tokenizer.encode, add_special_tokens=False)
    model.say("A")
    before, inside = ids("bc").ids, ids('<tool_call>\n{"').ids
    masks = model.masks([*before, *inside])
    first = len(before) + 1
    assert list(masks) == list(range(first, len(before) + len(inside) + 1))
    assert all(token in masks[first + i] for i, token in enumerate(inside[1:]))
    assert EOS not in masks[first]
    # They are rejected, and the answer goes on as text.
    assert model.say("bcd") == 0
    assert model.masks() == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"arguments": {"city": 3}, "name": "weather"}',
        '{"name": "weather", "id": 1, "arguments": {"city": 3}}',
        '{"name": "weather", "arguments": "{\\"city\\": 3}"}',
        '{"n\\u0061me": "weather", "arguments": {"city": 3}}',
        '{"name": "we\\u0061ther", "arguments": {"city": 3}}',
        '{"name": "weather", "argument\\u0073": {"city": 3}}',
        '```json\n{"arguments": {"city": 3}, "name": "weather"}',
    ],
)
@pytest.mark.parametrize("format", [HERMES, LLAMA], ids=lambda f: f.name)
@pytest.mark.parametrize("whole", [False, True])
def test_what_no_grammar_holds_is_no_call_of_a_strict_tool(format: Format, text: str, whole: bool) -> None:
    parser = ToolParser(format, list(SCHEMAS), schemas=SCHEMAS, strict={"weather"}, whole=whole)
    parts = [parser.push(char) for char in text] + [parser.finish(cut=False)]
    assert "".join(part.text for part in parts) == text
    assert not any(part.calls for part in parts)
    other = text.replace("weather", "now").replace("we\\u0061ther", "now")
    assert calls_of(ToolParser(format, list(SCHEMAS), schemas=SCHEMAS, strict={"weather"}), iter([other]))


COLOUR = {"enum": ["red", "</parameter>", "blue\n"]}
IN_TAGS = {
    "referred to": {"$ref": "#/$defs/forecast", "$defs": {"forecast": PARAMETERS}},
    "joined": {"allOf": [{"properties": PARAMETERS["properties"]}, {"required": ["city", "days"]}]},
    "one of two": {
        "oneOf": [
            {"properties": {"at": {"type": "integer", "maximum": 9}}, "required": ["at"]},
            {"properties": {"city": {"const": "Oslo"}}, "required": ["city"]},
        ]
    },
    "a value of several types": {
        "properties": {"a": {"enum": [1, "x", None, {"b": 1}, [1, 2]]}},
        "required": ["a"],
    },
    "an optional text of a few": {
        "properties": {"a": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}], "default": None}},
        "required": ["a"],
        "$defs": {"c": COLOUR},
    },
    "a few texts or a number": {
        "properties": {"a": {"anyOf": [COLOUR, {"type": "integer", "maximum": 99}]}},
        "required": ["a"],
    },
    "a reference with a description": {
        "properties": {"a": {"allOf": [{"$ref": "#/$defs/c"}], "description": "Which."}},
        "required": ["a"],
        "$defs": {"c": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}},
    },
}


@pytest.mark.parametrize("schema", IN_TAGS.values(), ids=IN_TAGS)
def test_calls_in_tags_fit_schemas_however_these_are_written(folder: Path, schema: dict[str, Any]) -> None:
    grammar = grammar_of(
        folder, QWEN3_CODER, [{"function": {"name": "f", "parameters": schema, "strict": True}}]
    )
    found = []
    for seed in range(8):
        model = Model(folder, grammar)
        model.say("<function=")
        parser = ToolParser(QWEN3_CODER, ["f"], schemas={"f": schema}, strict={"f"})
        calls = calls_of(parser, iter("<function=" + model.babble(random.Random(seed))))
        if EOS in model.masks()[0]:  # else it is long
            found += calls
    assert found
    for _, arguments in found:
        jsonschema.validate(arguments, schema)


@pytest.mark.parametrize("join", ["allOf", "anyOf", "oneOf"])
def test_schemas_that_refer_to_themselves_are_read_in_bounds(join: str) -> None:
    schema: dict[str, Any] = {join: [{"$ref": "#/$defs/a"}] * 50, "properties": {"b": {"$ref": "#/$defs/a"}}}
    schema["$defs"] = {"a": {join: [{"$ref": "#/$defs/a"}] * 50}}
    text = "<function=f>\n<parameter=b>\n7\n</parameter>\n</function>"
    for form in (schema, {"properties": 3, "allOf": 1, "anyOf": [4], "required": "b"}):
        parser = ToolParser(QWEN3_CODER, ["f"], schemas={"f": form})
        assert calls_of(parser, iter([text])) == [("f", {"b": "7"})]
