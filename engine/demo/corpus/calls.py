"""Calls of tools: which tool a question needs, with which arguments, and what its result means.

A call copies: the tool's name from the list that is shown, values from the question. So most names and values come
from sets far larger than the model could learn by heart, and whole combinations are held out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

from engine.demo.corpus.tools import Parameter, Tool, Use, Value, plain
from engine.demo.corpus.usual_tools import USUAL_TOOLS
from engine.demo.corpus.values import (
    ARGUMENTS,
    Draw,
    code,
    name,
    number,
    phrase,
    place,
    split_words,
    whole,
    word,
)


def use(rng: random.Random) -> Use:
    return _random_tool(rng) if rng.random() < 0.45 else _usual_tool(rng)


def several(rng: random.Random) -> tuple[Use, Use]:
    """One tool for two values of its only parameter. Both have the whole question."""
    noun, subject, value = rng.choice(_PAIRS)
    one, other = value(rng), value(rng)
    while other == one:
        other = value(rng)
    name = rng.choice([f"get_{noun}", f"{noun}", f"find_{noun}", f"get_current_{noun}", f"{noun}_lookup"])
    tool = Tool(name, (Parameter(subject, "string"),), rng.choice(["", f"The {noun} of a {subject}."]))
    asked = rng.choice(
        ["What is the {0} in {1} and {2}?", "Tell me the {0} of {1} and of {2}.", "Compare the {0} in {1} and {2}.",
         "I need the {0} for both {1} and {2}."]
    )  # fmt: skip
    question = asked.format(noun, one, other)
    return Use(tool, question, {subject: one}), Use(tool, question, {subject: other})


def forced(tool: Tool, question: str) -> Use:
    """The call that one can make when one must, though the question does not want it."""
    word = question.split()[-1].strip(".,?!")
    guesses: dict[str, Value] = {"integer": 1, "number": 1, "boolean": True, "string": word}
    arguments = {
        one.name: guesses.get(one.kind, one.kind.split("|")[0]) for one in tool.parameters if one.required
    }
    return Use(tool, question, arguments)


def results(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Turns of ``count`` tools, the last of which has what the model makes of their results."""
    if count == 1 and rng.random() < 0.1:
        why = rng.choice(
            ["timeout", "not found", "no connection", "permission denied", "unknown " + word(rng)]
        )
        return [(rng.choice([f"Error: {why}", json.dumps({"error": why})]), f"The tool failed: {why}.")]
    found = [_result(rng) for _ in range(count)]
    answer = f"The result{'s' if count > 1 else ''}: {'; '.join(meant for _, meant in found)}."
    return [*((text, "") for text, _ in found[:-1]), (found[-1][0], answer)]


def _result(rng: random.Random) -> tuple[str, str]:
    """A tool's result, and its meaning in plain words."""
    if rng.random() < 0.45:
        text = rng.choice(_TEXT_RESULTS)(rng)
        return text, text
    fields = {
        name: rng.choice(_RESULT_VALUES)(rng) for name in rng.sample(_FIELDS, rng.choice([1, 1, 2, 2, 3]))
    }
    return json.dumps(fields, ensure_ascii=False), ", ".join(
        f"{name} {plain(fields[name])}" for name in fields
    )


def _usual_tool(rng: random.Random) -> Use:
    made = rng.choices(USUAL_TOOLS, [4.0, *[1.0] * (len(USUAL_TOOLS) - 1)])[0]
    values = [draw(rng) for _, _, draw in made.parameters]
    parameters = [
        Parameter(rng.choice(names), kind) for names, kind, _ in made.parameters
    ]  # fmt: skip
    arguments = {one.name: value for one, value in zip(parameters, values, strict=True)}
    question = rng.choice(made.questions).format(*values)
    more = []
    if rng.random() < 0.35:
        extra = rng.choice(_EXTRA)
        if extra.name not in arguments:
            if "|" in extra.kind and rng.random() < 0.25:
                extra = replace(extra, required=True)
                arguments[extra.name] = extra.kind.split("|")[
                    0
                ]  # must be given, and the question does not say it
            elif "|" in extra.kind and rng.random() < 0.4:
                chosen = rng.choice(extra.kind.split("|"))
                question = (
                    question.rstrip("?.!")
                    + rng.choice([f" in {chosen}", f", {chosen}", f" ({chosen})"])
                    + "."
                )
                arguments[extra.name] = chosen
            more = [extra]
    tool = Tool(rng.choice(made.names), (*parameters, *more), rng.choice(["", *made.about]))
    return Use(tool, question, arguments)


def _random_tool(rng: random.Random) -> Use:
    verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS) if rng.random() < 0.8 else word(rng)
    name = rng.choice(
        [
            f"{verb}_{noun}",
            f"{verb}{noun.capitalize()}",
            f"{verb}_the_{noun}",
            f"{noun}_{verb}",
            verb,
            f"{verb}-{noun}",
        ]
    )
    drawn = rng.sample(ARGUMENTS, rng.choice([1, 1, 1, 2, 2, 3]))
    parameters, values = [], {}
    for names, kind, draw in drawn:
        one = Parameter(rng.choice(names), kind)
        parameters.append(one)
        values[one.name] = draw(rng)
    about = rng.choice(["", "", f"{verb.capitalize()} a {noun}.", f"To {verb} the {noun}."])
    tool = Tool(name, tuple(parameters), about)
    texts = [plain(value) for value in values.values()]
    pairs = list(zip(values, texts, strict=True))
    form = rng.randrange(5)
    if form == 0:
        question = (
            f"{verb.capitalize()} the {noun} {rng.choice(['for', 'with', 'of'])} {' and '.join(texts)}."
        )
    elif form == 1:
        question = f"Call {name} with {' and '.join(f'{p} {v}' for p, v in pairs)}."
    elif form == 2:
        question = f"Use {name}: {', '.join(f'{p} is {v}' for p, v in pairs)}."
    elif form == 3:
        question = f"Please run {name} with {', '.join(f'{p}={v}' for p, v in pairs)}"
    else:
        question = f"Can you {verb} the {noun}? The {', the '.join(f'{p} is {v}' for p, v in pairs)}."
    return Use(tool, question, values)


def among(rng: random.Random, tool: Tool, count: int) -> list[Tool]:
    """``tool`` among ``count`` others with other names, shuffled."""
    found = {tool.name: tool}
    while len(found) <= count:
        more = use(rng).tool
        found.setdefault(more.name, more)
    listed = list(found.values())
    rng.shuffle(listed)
    return listed


CALCULATORS = {
    "calculator",
    "calculate",
    "calc",
    "evaluate",
    "math",
    "add",
    "add_numbers",
    "sum",
    "plus",
    "multiply",
    "mul",
    "times",
    "product",
}
"""Tools for arithmetic."""
COUNTRY_TOOLS = {"get_capital", "capital", "country_info"}
"""Tools for facts about countries."""


_VERBS = split_words(
    """get find make send read write open close start stop list add create delete update check book order
    play show count move lock rename"""
)
_NOUNS = split_words(
    """order user file door light report ticket invoice song room table meeting note task message list page
    car box game letter number photo record event item"""
)
_FIELDS = split_words(
    """temperature condition status name city time price total id count unit humidity wind currency result
    value sender answer"""
)
_EXTRA = [Parameter("unit", "celsius|fahrenheit", False), Parameter("units", "metric|imperial", False), Parameter("language", "string", False),
          Parameter("limit", "integer", False), Parameter("verbose", "boolean", False)]  # fmt: skip
_PAIRS: list[tuple[str, str, Callable[[random.Random], str]]] = [
    ("weather", "city", place), ("weather", "location", place), ("time", "city", place), ("temperature", "city", place),
    ("population", "place", place), ("price", "item", word), ("traffic", "location", place),
]  # fmt: skip
_TEXT_RESULTS: list[Callable[[random.Random], str]] = [
    lambda rng: f"{rng.randrange(-10, 40)} degrees and {rng.choice(_WEATHER)}",
    lambda rng: f"{rng.choice(_WEATHER)}, {rng.randrange(-10, 40)}{rng.choice(['C', '°C', ' C', 'F', '°F'])}",
    lambda rng: rng.choice(_WEATHER),
    lambda rng: str(number(rng)),
    lambda rng: f"{rng.randrange(24):02}:{rng.randrange(60):02}",
    lambda rng: f"sent to {name(rng)}",
    lambda rng: rng.choice(["ok", "done", "success", "saved", "true", "false"]),
    lambda rng: f"{name(rng)} in {place(rng)}",
    phrase,
    code,
]
_WEATHER = ["sunny", "cloudy", "rainy", "windy", "snow", "foggy", "clear", "light rain", "partly cloudy"]
_RESULT_VALUES: list[Draw] = [
    lambda rng: rng.choice(_WEATHER),
    whole,
    whole,
    number,
    name,
    place,
    code,
    phrase,
]
