"""``strict`` of tools that need not be called: free text, and a grammar from where the model begins a call.

OpenAI's contract is that the arguments of a strict tool fit its schema whenever it is called
(https://platform.openai.com/docs/guides/function-calling#strict-mode). Until the model writes a sign of its format
nothing is masked (``Trigger``); from there on the grammar holds: any text in which a marker is followed by a call of
an offered tool, and the arguments of a strict one by what fits its schema. So they are, too, behind the beginning of
a call that stands without markers. Those of other tools are any object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engine.core.sampling_params import Grammar, Trigger
from engine.grammar.language import TIGHT, embedded, quoted
from engine.server import tools_xml
from engine.server.tools import ForcedCalls, Format, call_rule

_OPEN = {"additionalProperties": True}
_SPACE = r"[ \t\r\n]*"
_OPENING = rf"{_SPACE}(?:```[a-z_ \t\r\n]{{0,24}}|<tools>{_SPACE})?[\[{{]"
"""How an answer begins that is calls without markers (``tools_unmarked.py``): then each part of it may be one."""
_CHANNEL_SIGN = r"(?:<\|channel\|>commentary|<\|start\|>assistant|\A) ?to=functions"


def is_strict(tool: Mapping[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def strict_grammar(
    format: Format, tools: Sequence[Mapping[str, Any]], longest: int | None, marker: Callable[[str], str]
) -> Grammar:
    """``longest``, ``marker``: as in ``tools.py``."""
    forced = ForcedCalls(tools, several=False, longest=longest)
    schemas = [forced.schema(tool if is_strict(tool) else _opened(tool)) for tool in tools]
    named = [(tool["function"]["name"], schema) for tool, schema in zip(tools, schemas, strict=True)]
    strict = [one for one, tool in zip(named, tools, strict=True) if is_strict(tool)]
    if format.layout == "channel":
        # A header is a call's from its sign on, and what ends the call ends the answer.
        lines, trigger = ["start: part TEXT", *_channel(named, marker)], Trigger(_CHANNEL_SIGN)
    else:
        # Signs are without their last character, which a token may have with more behind it.
        lines = ["start: part* TEXT", *_calls(format, named, marker), *_unmarked(strict, named)]
        trigger = Trigger("|".join(re.escape(sign[:-1]) for sign in _begins(format)), _OPENING)
    return Grammar("own", "\n".join([*lines, "TEXT: /(?s:.*)/"]), trigger=trigger)


def _opened(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**tool, "function": {**tool["function"], "parameters": _OPEN}}


def _begins(format: Format) -> tuple[str, ...]:
    return (format.begin, *format.others)


def _calls(
    format: Format, named: Sequence[tuple[str, dict[str, Any]]], marker: Callable[[str], str]
) -> Iterator[str]:
    """What follows a marker. Whether more follows a call is the model's to say."""
    for i, (name, schema) in enumerate(named):
        yield from call_rule(format, f"call_{i}", name, schema, marker)
    yield f"call: {_among('call_{}', named)}"
    for i, sign in enumerate(_begins(format)):
        yield f"spelled_{i}[lazy]: /(?s:.*){_lark(re.escape(sign))}/"
        own = marker(sign)
        yield f"begin_{i}: spelled_{i}" + (f" | TEXT {own}" if own != quoted(sign) else "")
    gap, end = format.gap and quoted(format.gap), format.end and marker(format.end)
    whole = (
        f'" "? "[" call ("," " "? call)* "]" {end}' if format.layout == "list" else f"{gap} call {gap} {end}"
    )
    for i, sign in enumerate(_begins(format)):
        if sign == tools_xml.OPENING:
            yield f"named: {_among('call_{}_named', named)}"
            yield f"part_{i}: begin_{i} named"
        else:
            yield f"part_{i}: begin_{i} {whole}"
    yield f"part: bare | {_among('part_{}', _begins(format))}"


def _channel(named: Sequence[tuple[str, dict[str, Any]]], marker: Callable[[str], str]) -> Iterator[str]:
    """The header's recipient stands before or behind its channel."""
    channel, start = marker("<|channel|>"), marker("<|start|>")
    yield f'sender: ({channel} "commentary" | {start} "assistant")? " "? "to=functions."'
    yield "WORD: /[ a-z]{1,24}/"
    constrain, message = marker("<|constrain|>"), marker("<|message|>")
    yield f"rest: WORD? ({channel} WORD)? ({constrain} WORD)? {message}"
    for i, (name, schema) in enumerate(named):
        yield f"call_{i}: {quoted(name)} rest {embedded(schema, TIGHT)}"
    yield f"part: sender ({_among('call_{}', named)})"


def _unmarked(
    strict: Sequence[tuple[str, dict[str, Any]]], named: Sequence[tuple[str, dict[str, Any]]]
) -> Iterator[str]:
    """Strict tools' calls without markers, each from its name to the end of its arguments."""
    folded = [name.casefold() for name, _ in named]
    for i, (name, schema) in enumerate(strict):
        shown = re.escape(json.dumps(name, ensure_ascii=False)[1:-1])
        if folded.count(name.casefold()) == 1:
            shown = f"(?i:{shown})"  # as the parser has it
        parts = ['"name"', ":", f'"{shown}"', ",", '"(arguments|parameters)"', ":"]
        head = _lark(_SPACE.join(parts))
        yield f"bare_{i}_head[lazy]: /(?s:.*){head}/"
        yield f"bare_{i}: bare_{i}_head SPACE {embedded(schema)}"
    yield r"SPACE: /[ \t\r\n]{0,40}/"
    yield f"bare: {_among('bare_{}', strict)}"


def _among(rule: str, those: Sequence[Any]) -> str:
    return " | ".join(rule.format(i) for i in range(len(those)))


def _lark(pattern: str) -> str:
    """A regular expression between slashes."""
    return pattern.replace("/", r"\/").replace("\n", r"\n")
