"""A request's grammar in llguidance's words, and whether it can be used at all. No torch, no model.

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
from engine.grammar.crowds import crowds

MAX_SOURCE = 128 * 1024
"""Characters of the longest grammar: as many as OpenAI takes in a schema
(https://platform.openai.com/docs/guides/structured-outputs#supported-schemas)."""

_WHITESPACE = r"( |\n {0,40})?"
"""Between JSON's signs: enough to print nicely, and too little for a model to lose itself in."""

TIGHT = " ?"
"""The same for JSON that is not meant to be looked at."""


_SPELLING = '%llguidance {"no_forcing": true}'
"""Texts that must follow may be spelt as the model likes: else llguidance would spell a special token's name, where it
is meant as text, by that token, and then refuse it."""


_WIDEST = 2000
"""Alternatives that may be open at once: an object has four for each of its optional properties."""

_WIDEST_FREE = 500
"""The same in a grammar of the caller's own: an ambiguous one has them all at each token, and what they take grows with
their cube (500: 3 ms, 2,000: 200 ms)."""


def limits(kind: Kind) -> LLParserLimits:
    """What a grammar may cost to compile and at each token, so that no request stalls the others. What it takes all in
    all, ``engine/grammar/follower.py`` bounds."""
    return LLParserLimits(
        max_items_in_row=_WIDEST_FREE if kind == "lark" else _WIDEST,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        # Half a kilobyte each. A string with a `maxLength` takes about nine for each of its characters.
        max_lexer_states=250_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def definition(grammar: Grammar) -> str:
    """What llguidance's matcher is made of. Raises ``ValueError`` for what ``check`` refuses, or the matcher will."""
    if grammar.kind == "json_schema":
        source = f"start: {embedded(json.loads(grammar.source))}"
    elif grammar.kind == "regex":
        # \d, \w and \s are ASCII's, as writers of patterns for programs expect.
        source = f"start: /(?:{regex_to_lark(grammar.source, 'dws')})/"
    else:
        source = grammar.source
    return LLMatcher.grammar_from_lark(f"{source}\n{_SPELLING}")


def check(grammar: Grammar) -> str | None:
    """Why the grammar cannot be used, in a few words; ``None`` if it can.

    It may take a second, and lets other threads run meanwhile.
    """
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
    if grammar.kind == "json_schema" and (reason := _crowded(json.loads(grammar.source))):
        return reason
    if grammar.prefix:
        matcher.consume_tokens(_bytes().tokenize_str(grammar.prefix))
        if matcher.is_error():
            return "the answer to be continued does not begin as it demands"
    return None


def _crowded(schema: object) -> str | None:
    """Why it cannot be followed everywhere, though it can be begun."""
    for crowd, text in crowds(schema):
        # Each has two at the least, four where all properties of the object are optional.
        if 2 * len(crowd.get("properties", ())) <= _WIDEST:
            grammar = Grammar("json_schema", json.dumps(crowd))
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
    """Exactly one of the texts. Raises ``ValueError`` if they are too long to be worth the trouble."""
    if (length := sum(map(len, texts))) > MAX_SOURCE:
        raise ValueError(too_long(length))
    # A terminal, not a rule of alternatives: however many they are, a mask takes 50 us, and no limit is met.
    return Grammar("own", "start: CHOICE\nCHOICE: " + " | ".join(map(quoted, texts)))


def lark(source: str) -> Grammar:
    """From llguidance's Lark, or from GBNF or EBNF with ``::=``. Raises ``ValueError``."""
    if len(source) > MAX_SOURCE or "::=" not in source:
        # The conversion below is slow on long texts, and takes some Lark for GBNF; ``check`` says what is wrong.
        return Grammar("lark", source)
    try:
        return Grammar("lark", any_to_lark(source))
    except Exception as error:  # it raises Exception itself, and IndexError on texts that break off
        raise ValueError(str(error) or "it breaks off") from error


def too_long(length: int) -> str:
    return f"it has {length} characters, and {MAX_SOURCE} is the most"


def quoted(text: str) -> str:
    """A literal of Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def embedded(schema: object, whitespace: str = _WHITESPACE) -> str:
    """A JSON schema as a part of a Lark grammar. ``whitespace``: what may stand between JSON's signs."""
    if isinstance(schema, dict) and isinstance(look := schema.get("x-guidance", {}), dict):
        schema = {**schema, "x-guidance": {"whitespace_pattern": whitespace, **look}}
    return "%json " + json.dumps(schema, ensure_ascii=False)


@cache
def _bytes() -> LLTokenizer:
    """A tokenizer whose tokens are the bytes: all that is needed to see whether a grammar is one."""
    return LLTokenizer("byte")


def plain(error: str) -> str:
    """llguidance's reason without the excerpt of the grammar that it draws below it."""
    if "NoExtensionBias" in error:
        return "it is recursive without an end"
    text = re.split(r"\n\s*\d+ \||\n?<state>|\n?<non-verbose/>", error)[0]
    return re.sub(r"^at (\d+)\((\d+)\): ", r"line \1, column \2: ", " ".join(text.split()))[:500]
