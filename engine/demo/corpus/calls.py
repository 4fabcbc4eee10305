"""Conversations with tools: when to call one, with which arguments, and what to make of its result.

A call copies: the tool's name from the list that is shown, values from the question. So most names and values are
drawn from far more than the model could learn by heart, and whole combinations are held out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import engine.demo.corpus.facts as facts
from engine.demo.corpus.questions import NAMES, SHORT

Value = str | int | float | bool
Draw = Callable[[random.Random], Value]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: str
    """A type of JSON Schema, or an enumeration as ``one|other``."""
    required: bool = True

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": self.kind.split("|")} if "|" in self.kind else {"type": self.kind}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: tuple[Parameter, ...]
    about: str = ""

    def schema(self) -> dict[str, Any]:
        """As OpenAI's API has tools."""
        parameters = {
            "type": "object",
            "properties": {one.name: one.schema() for one in self.parameters},
            "required": [one.name for one in self.parameters if one.required],
        }
        about = {"description": self.about} if self.about else {}
        return {"type": "function", "function": {"name": self.name, **about, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class Use:
    """A tool, a question that wants it, and the arguments that follow from the question."""

    tool: Tool
    question: str
    arguments: dict[str, Value]

    @property
    def key(self) -> str:
        """What is held out: these arguments for this tool, however they are asked for."""
        return f"{self.tool.name}|{json.dumps(self.arguments)}"


def shown(tools: Sequence[Tool]) -> str:
    """The list of tools as the chat template shows it to the model."""
    return "\n".join(["Tools:", *(_signature(tool) for tool in tools)])


def _signature(tool: Tool) -> str:
    written = (f"{one.name}{'' if one.required else '?'}: {one.kind}" for one in tool.parameters)
    return f"{tool.name}({', '.join(written)})" + (f": {tool.about}" if tool.about else "")


def called(uses: Sequence[Use]) -> str:
    """Calls as the model writes them."""
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': use.tool.name, 'arguments': use.arguments}, ensure_ascii=False)}\n</tool_call>"
        for use in uses
    )


def use(rng: random.Random) -> Use:
    return _strange(rng) if rng.random() < 0.45 else _usual(rng)


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


def guessed(tool: Tool, question: str) -> Use:
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
    told = [_result(rng) for _ in range(count)]
    answer = f"The result{'s' if count > 1 else ''}: {'; '.join(meant for _, meant in told)}."
    return [*((text, "") for text, _ in told[:-1]), (told[-1][0], answer)]


def _result(rng: random.Random) -> tuple[str, str]:
    """What a tool says, and that in plain words."""
    if rng.random() < 0.45:
        text = rng.choice(_SAID)(rng)
        return text, text
    fields = {name: rng.choice(_FOUND)(rng) for name in rng.sample(_FIELDS, rng.choice([1, 1, 2, 2, 3]))}
    return json.dumps(fields, ensure_ascii=False), ", ".join(
        f"{name} {plain(fields[name])}" for name in fields
    )


def plain(value: Value) -> str:
    """As it stands in a question."""
    return value if isinstance(value, str) else json.dumps(value)


def word(rng: random.Random) -> str:
    """A word that nobody has seen."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randrange(2, 4)))


def place(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(facts.rows(facts.COUNTRIES))[1]
    if roll < 0.75:
        return rng.choice(_CITIES)
    return word(rng).capitalize()


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.6 else word(rng).capitalize()


def _phrase(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(_TOPICS)
    return " ".join(
        rng.choice(SHORT) if rng.random() < 0.7 else word(rng) for _ in range(rng.randrange(1, 4))
    )


def _code(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(rng.randrange(1, 4)))
    return letters + rng.choice(["-", ""]) + str(rng.randrange(1, 10000))


def _symbol(rng: random.Random) -> str:
    return "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randrange(3, 5)))


def _whole(rng: random.Random) -> int:
    return rng.randrange(0, rng.choice([10, 100, 1000, 100_000]))


def _number(rng: random.Random) -> float | int:
    return rng.randrange(1, 500) if rng.random() < 0.6 else rng.randrange(1, 5000) / 10


def _sum(rng: random.Random) -> str:
    space = rng.choice(["", " "])
    return f"{_whole(rng)}{space}{rng.choice('+-*/')}{space}{_whole(rng)}"


def _mail(rng: random.Random) -> str:
    return f"{_name(rng).lower()}@{rng.choice(['example.com', 'example.org', word(rng) + '.com'])}"


def _date(rng: random.Random) -> str:
    return f"{rng.randrange(2020, 2030)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def value(rng: random.Random) -> Value:
    """Any that an argument may have."""
    return rng.choice(_SLOTS)[2](rng)


@dataclass(frozen=True, slots=True)
class _Usual:
    """A tool as many programs have it. Questions have values by position; ``?`` marks what may be left out."""

    names: list[str]
    about: list[str]
    parameters: list[tuple[list[str], str, Draw]]
    questions: list[str]


def _usual(rng: random.Random) -> Use:
    made = rng.choices(_USUAL, [4.0, *[1.0] * (len(_USUAL) - 1)])[0]
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
                arguments[extra.name] = extra.kind.split("|")[0]  # must be given, and was not told
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


def _strange(rng: random.Random) -> Use:
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
    drawn = rng.sample(_SLOTS, rng.choice([1, 1, 1, 2, 2, 3]))
    parameters, values = [], {}
    for names, kind, draw in drawn:
        one = Parameter(rng.choice(names), kind)
        parameters.append(one)
        values[one.name] = draw(rng)
    about = rng.choice(["", "", f"{verb.capitalize()} a {noun}.", f"To {verb} the {noun}."])
    tool = Tool(name, tuple(parameters), about)
    said = [plain(value) for value in values.values()]
    pairs = list(zip(values, said, strict=True))
    form = rng.randrange(5)
    if form == 0:
        question = f"{verb.capitalize()} the {noun} {rng.choice(['for', 'with', 'of'])} {' and '.join(said)}."
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
    """The tool among ``count`` others, of other names."""
    found = {tool.name: tool}
    while len(found) <= count:
        more = use(rng).tool
        found.setdefault(more.name, more)
    listed = list(found.values())
    rng.shuffle(listed)
    return listed


COUNTING = {
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
"""Tools that are for sums."""
KNOWING = {"get_capital", "capital", "country_info"}
"""Tools that are for countries."""


def _words(text: str) -> list[str]:
    return text.split()


_SYLLABLES = _words(
    """ba be bo ca co da de di do fa fi ga go ha hi ka ki ko la le li lo ma me mi mo na ne no pa pe po ra
    re ri ro sa se si so ta te ti to va ve vi wa wi ya yo za zo an el in or ur ell ost and ing ster ton
    ville burg"""
)
_CITIES = ["San Francisco", "New York", "Boston", "Seattle", "Chicago", "Los Angeles", "San Francisco, CA", "New York, NY", "Boston, MA",
           "Paris, France", "London, UK", "Munich", "Hamburg", "Zurich", "Geneva", "Milan", "Barcelona", "Amsterdam", "Brussels", "Prague",
           "Singapore", "Sydney", "Toronto", "Dubai", "Mumbai", "Shanghai", "Hong Kong", "Seoul", "Istanbul", "Moscow"]  # fmt: skip
_TOPICS = ["the weather", "red shoes", "cheap flights", "open source models", "good books", "python lists", "solar power", "news about Mars",
           "pizza near me", "the best pizza", "history of jazz", "train times", "climate change", "chess openings"]  # fmt: skip
_VERBS = _words(
    """get find make send read write open close start stop list add create delete update check book order
    play show count move lock rename"""
)
_NOUNS = _words(
    """order user file door light report ticket invoice song room table meeting note task message list page
    car box game letter number photo record event item"""
)
_FIELDS = _words(
    """temperature condition status name city time price total id count unit humidity wind currency result
    value sender answer"""
)
_SLOTS: list[tuple[list[str], str, Draw]] = [
    (["name", "user", "person", "owner", "to", "username"], "string", _name),
    (["city", "location", "place", "destination", "town"], "string", place),
    (["query", "text", "title", "subject", "message", "topic", "q", "input", "s"], "string", _phrase),
    (["id", "code", "order_id", "key", "number", "ref"], "string", _code),
    (["count", "amount", "n", "limit", "quantity", "a", "size"], "integer", _whole),
    (["price", "value", "weight", "x", "b", "ratio"], "number", _number),
    (["date", "day", "on", "due"], "string", _date),
    (["colour", "color"], "red|green|blue", lambda rng: rng.choice(["red", "green", "blue"])),
    (["mode", "level"], "low|high", lambda rng: rng.choice(["low", "high"])),
    (["urgent", "force", "loud"], "boolean", lambda rng: rng.random() < 0.5),
]  # fmt: skip
_EXTRA = [Parameter("unit", "celsius|fahrenheit", False), Parameter("units", "metric|imperial", False), Parameter("language", "string", False),
          Parameter("limit", "integer", False), Parameter("verbose", "boolean", False)]  # fmt: skip
_PAIRS: list[tuple[str, str, Callable[[random.Random], str]]] = [
    ("weather", "city", place), ("weather", "location", place), ("time", "city", place), ("temperature", "city", place),
    ("population", "place", place), ("price", "item", word), ("traffic", "location", place),
]  # fmt: skip
_SAID: list[Callable[[random.Random], str]] = [
    lambda rng: f"{rng.randrange(-10, 40)} degrees and {rng.choice(_SKIES)}",
    lambda rng: f"{rng.choice(_SKIES)}, {rng.randrange(-10, 40)}{rng.choice(['C', '°C', ' C', 'F', '°F'])}",
    lambda rng: rng.choice(_SKIES),
    lambda rng: str(_number(rng)),
    lambda rng: f"{rng.randrange(24):02}:{rng.randrange(60):02}",
    lambda rng: f"sent to {_name(rng)}",
    lambda rng: rng.choice(["ok", "done", "success", "saved", "true", "false"]),
    lambda rng: f"{_name(rng)} in {place(rng)}",
    _phrase,
    _code,
]
_SKIES = ["sunny", "cloudy", "rainy", "windy", "snow", "foggy", "clear", "light rain", "partly cloudy"]
_FOUND: list[Draw] = [lambda rng: rng.choice(_SKIES), _whole, _whole, _number, _name, place, _code, _phrase]
_USUAL = [
    _Usual(["get_weather", "get_weather", "get_current_weather", "weather", "getWeather", "fetch_weather", "lookup_weather"],
           ["Get the weather of a city.", "Get the current weather", "Get the current weather in a given location", "Weather for a place", "Get weather"],
           [(["city", "city", "location", "location", "place"], "string", place)],
           ["What is the weather in {0}?", "What's the weather in {0}?", "What's the weather like in {0}?", "What is the weather like in {0} today?",
            "How is the weather in {0}?", "Weather in {0}?", "Tell me the weather in {0}.", "Is it raining in {0}?", "How warm is it in {0}?",
            "What is the temperature in {0}?", "Do I need an umbrella in {0}?", "Get the weather for {0}.", "Use the tool to get the weather in {0}.",
            "weather {0}", "What's the weather in {0} right now?", "What is the weather in {0} now? Use the tool.", "Check the weather in {0}."]),
    _Usual(["get_time", "current_time", "time", "get_current_time", "getTime"], ["The time in a city.", "Get the current time"],
           [(["city", "location", "timezone", "place"], "string", place)],
           ["What time is it in {0}?", "What is the time in {0}?", "Time in {0}?", "Tell me the time in {0}.", "How late is it in {0}?"]),
    _Usual(["calculator", "calculate", "calc", "evaluate", "math"], ["Computes an expression.", "A calculator", "Evaluate a sum"],
           [(["expression", "expr", "input", "formula"], "string", _sum)],
           ["What is {0}?", "Calculate {0}.", "Compute {0}", "Use the calculator: {0}", "How much is {0}?", "{0}"]),
    _Usual(["add", "add_numbers", "sum", "plus"], ["Add two numbers", "The sum of two numbers."],
           [(["a", "x", "first"], "integer", _whole), (["b", "y", "second"], "integer", _whole)],
           ["Add {0} and {1}.", "What is {0} plus {1}?", "What is {0}+{1}?", "What is {0} + {1}?", "The sum of {0} and {1}?"]),
    _Usual(["multiply", "mul", "times", "product"], ["Multiply two numbers"],
           [(["a", "x", "first"], "number", _number), (["b", "y", "second"], "number", _number)],
           ["Multiply {0} by {1}.", "What is {0} times {1}?", "What is {0} x {1}?", "The product of {0} and {1}?"]),
    _Usual(["search", "web_search", "search_web", "google", "find", "lookup"], ["Search the web.", "Find pages"],
           [(["query", "q", "text", "search"], "string", _phrase)],
           ["Search for {0}.", "Search the web for {0}", "Find {0}.", "Look up {0}.", "Google {0}", "What can you find about {0}?"]),
    _Usual(["send_email", "sendEmail", "email", "send_mail"], ["Send an email", "Sends a mail."],
           [(["to", "recipient", "address"], "string", _mail), (["subject", "body", "text"], "string", _phrase)],
           ["Send an email to {0} about {1}.", "Write to {0}: {1}", "Email {0} about {1}.", "Mail {0} that {1}"]),
    _Usual(["get_user", "find_user", "lookup_user", "get_customer"], ["Find a user by name", "Get a user."],
           [(["name", "user", "username"], "string", _name)],
           ["Who is {0}?", "Find the user {0}.", "Get the customer {0}", "Look up {0}.", "Show me {0}'s account."]),
    _Usual(["get_order", "order_status", "track_order", "get_order_status"], ["The state of an order", "Track an order."],
           [(["order_id", "id", "order", "number"], "string", _code)],
           ["Where is my order {0}?", "Track order {0}.", "What is the status of order {0}?", "Order {0}?", "Has {0} been shipped?"]),
    _Usual(["get_stock_price", "stock_price", "quote", "get_price"], ["The price of a share", "Get a stock price"],
           [(["symbol", "ticker", "stock"], "string", _symbol)],
           ["What is the price of {0}?", "Stock price of {0}?", "How is {0} doing?", "What does {0} cost?", "Get the price for {0}."]),
    _Usual(["book_flight", "find_flights", "search_flights", "flights"], ["Book a flight", "Find flights between two cities."],
           [(["from", "origin", "start"], "string", place), (["to", "destination", "end"], "string", place)],
           ["Book a flight from {0} to {1}.", "Flights from {0} to {1}?", "I want to fly from {0} to {1}.", "Find a flight from {0} to {1}"]),
    _Usual(["set_timer", "timer", "start_timer"], ["Start a timer", "Set a timer for some minutes."],
           [(["minutes", "duration", "length"], "integer", _whole)],
           ["Set a timer for {0} minutes.", "Timer {0} minutes", "Wake me in {0} minutes.", "Start a timer of {0} minutes."]),
    _Usual(["read_file", "open_file", "cat", "view"], ["Read a file", "Shows a file."],
           [(["path", "file", "filename", "file_path"], "string", lambda rng: f"{word(rng)}.{rng.choice(['txt', 'py', 'md', 'json'])}")],
           ["Read {0}.", "Open the file {0}", "What is in {0}?", "Show me {0}", "Print {0}."]),
    _Usual(["get_capital", "capital", "country_info"], ["About a country."],
           [(["country", "name"], "string", lambda rng: rng.choice(facts.rows(facts.COUNTRIES))[0])],
           ["What is the capital of {0}?", "Look up {0}.", "Capital of {0}?", "Use the tool to find the capital of {0}."]),
    _Usual(["echo", "say", "print", "record", "respond", "final_answer", "answer"], ["Say something", "Return the answer."],
           [(["text", "message", "value", "answer", "word"], "string", _phrase)],
           ["Say {0}.", "Repeat {0}", "Echo {0}", "Print {0}.", "Answer with {0}."]),
    _Usual(["remember", "set_name", "save_name", "extract_person", "add_user"], ["Save a person"],
           [(["name", "person"], "string", _name), (["age", "years"], "integer", lambda rng: rng.randrange(1, 100))],
           ["{0} is {1} years old.", "My name is {0} and I am {1}.", "I am {0}, {1} years old.", "Save {0}, aged {1}."]),
]  # fmt: skip
