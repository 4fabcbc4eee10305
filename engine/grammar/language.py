"""A request's grammar as llguidance's Lark, and whether it can be used at all. No torch, no model.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md and …/docs/json_schema.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from engine.core.sampling_params import Grammar, Kind
from engine.grammar.wide_objects import wide_objects

MAX_SOURCE = 128 * 1024
"""Characters of the longest grammar: as many as OpenAI takes in a schema
(https://platform.openai.com/docs/guides/structured-outputs#supported-schemas)."""

_WHITESPACE = r"( |\n {0,40})?"
"""White space between JSON tokens: enough for pretty-printing, too little for a model to loop in."""

TIGHT = " ?"
"""The same for compact JSON."""


_SPELLING = '%llguidance {"no_forcing": true}'
"""Forced text may be tokenized as the model likes: llguidance would otherwise encode a special token's name, where it
is meant as text, as that token, and then reject it."""


_WIDEST = 2000
"""Alternatives that may be open at once: an object has four for each optional property."""

_WIDEST_FREE = 500
"""The same for a caller's own grammar: an ambiguous one has all of them at each token, and the time grows with their
cube (500: 3 ms, 2,000: 200 ms)."""


def limits(kind: Kind) -> LLParserLimits:
    """Limits on compiling a grammar and on each token, so that no request stalls the others. The total time is bounded
    in ``engine/grammar/matcher.py``."""
    return LLParserLimits(
        max_items_in_row=_WIDEST_FREE if kind == "lark" else _WIDEST,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        # Half a kilobyte each. A string with a `maxLength` takes about nine for each character.
        max_lexer_states=250_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def definition(grammar: Grammar) -> str:
    """The grammar for llguidance's matcher. Raises ``ValueError`` for what ``check``, or the matcher, rejects."""
    if grammar.kind == "json_schema":
        source = f"start: {embedded(json.loads(grammar.source))}"
    elif grammar.kind == "regex":
        # \d, \w and \s match ASCII alone, as in most JSON Schema validators.
        source = f"start: /(?:{regex_to_lark(grammar.source, 'dws')})/"
    else:
        source = grammar.source
    if not grammar.before:
        return LLMatcher.grammar_from_lark(f"{source}\n{_SPELLING}")
    sequence, _, rules = grammar.before.partition("\n")
    whole = f"start: {sequence} answer\n{rules}\nanswer: @answer\n{_SPELLING}"
    grammars = [{"lark_grammar": whole}, {"name": "answer", "lark_grammar": f"{source}\n{_SPELLING}"}]
    return json.dumps({"grammars": grammars})


def check(grammar: Grammar) -> str | None:
    """Why the grammar cannot be used, in a few words; ``None`` if it can. May take a second; other threads can run."""
    if len(grammar.source) > MAX_SOURCE:
        return too_long(len(grammar.source))
    try:
        matcher = LLMatcher(_bytes(), definition(grammar), log_level=0, limits=limits(grammar.kind))
    except RecursionError:
        return "it is nested too deeply"
    except ValueError as error:
        return plain(str(error))
    if not matcher.is_error():
        matcher.compute_bitmask()  # some grammars compile and are too much at the first token
    if matcher.is_error():
        return plain(matcher.get_error())
    if grammar.kind == "json_schema" and (reason := _too_wide(json.loads(grammar.source))):
        return reason
    if grammar.prefix:
        matcher.consume_tokens(_bytes().tokenize_str(grammar.prefix))
        if matcher.is_error():
            return "the answer to be continued does not begin as it demands"
    return None


def _too_wide(schema: object) -> str | None:
    """Why some object of the schema would exceed the limits, though the schema compiles."""
    for wide, text in wide_objects(schema):
        # Each property has at least two alternatives, four where all of the object's are optional.
        if 2 * len(wide.get("properties", ())) <= _WIDEST:
            grammar = Grammar("json_schema", json.dumps(wide))
            matcher = LLMatcher(_bytes(), definition(grammar), log_level=0, limits=limits(grammar.kind))
            matcher.consume_tokens(_bytes().tokenize_str(text))
            if not matcher.is_error():
                continue
        return (
            "an object has more optional properties than may be open at once "
            f"(some {_WIDEST // 4}): make some of them required, or put them in objects of their own"
        )
    return None


def choice(texts: Sequence[str]) -> Grammar:
    """Exactly one of the texts. Raises ``ValueError`` if they are too long."""
    if (length := sum(map(len, texts))) > MAX_SOURCE:
        raise ValueError(too_long(length))
    # A terminal rather than a rule: a mask takes 50 us for any number of texts, and no limit applies.
    return Grammar("own", "start: CHOICE\nCHOICE: " + " | ".join(map(quoted, texts)))


def lark(source: str) -> Grammar:
    """From llguidance's Lark, or from GBNF or EBNF with ``::=``. Raises ``ValueError``."""
    if len(source) > MAX_SOURCE or "::=" not in source:
        # The conversion below is slow on long texts, and mistakes some Lark for GBNF; ``check`` reports errors.
        return Grammar("lark", source)
    try:
        return Grammar("lark", any_to_lark(source))
    except Exception as error:  # it raises Exception itself, and IndexError on truncated texts
        raise ValueError(str(error) or "it breaks off") from error


def too_long(length: int) -> str:
    return f"it has {length} characters, and {MAX_SOURCE} is the most"


def quoted(text: str) -> str:
    """A Lark literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def embedded(schema: object, whitespace: str = _WHITESPACE) -> str:
    """A JSON schema as part of a Lark grammar. ``whitespace``: the pattern allowed between JSON tokens."""
    if isinstance(schema, dict) and isinstance(look := schema.get("x-guidance", {}), dict):
        schema = {**schema, "x-guidance": {"whitespace_pattern": whitespace, **look}}
    return "%json " + json.dumps(schema, ensure_ascii=False)


@cache
def _bytes() -> LLTokenizer:
    """A tokenizer of single bytes: enough to check a grammar."""
    return LLTokenizer("byte")


def plain(error: str) -> str:
    """llguidance's error without the excerpt of the grammar below it."""
    if "NoExtensionBias" in error:
        return "it is recursive without an end"
    text = re.split(r"\n\s*\d+ \||\n?<state>|\n?<non-verbose/>", error)[0]
    return re.sub(r"^at (\d+)\((\d+)\): ", r"line \1, column \2: ", " ".join(text.split()))[:500]
