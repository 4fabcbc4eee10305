"""The text that the demo model learns from, made up by rules and drawn from a seed.

What is held out: for sums, conversions, counting and stories the whole combination (no wording of ``17 + 25`` held
out is ever trained on); for facts, small talk and refusals one fact in one wording, as knowledge cannot be guessed.
A tenth of all keys, by their hash, is held out, but never what anyone would type first.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from engine.demo.corpus import arithmetic, calls, copies, dialogue, questions, stories
from engine.demo.corpus.dialogue import Turns
from engine.demo.corpus.item import Item, Maker
from engine.demo.corpus.tools import Tool, Use, called

MAKERS: list[tuple[Maker, float]] = [
    (questions.capital, 3.0),
    (questions.knowledge, 4.0),
    (arithmetic.arithmetic, 6.0),
    (arithmetic.conversion, 2.5),
    (questions.spelling, 1.5),
    (questions.listing, 1.0),
    (stories.story, 1.6),
    (stories.poem, 0.4),
    (dialogue.small_talk, 1.5),
    (dialogue.refusal, 1.8),
]
SYSTEM = [
    "You are a helpful assistant.", "You are a helpful assistant", "Answer briefly.", "Be concise.", "You are a friendly teacher.",
    "You are Tollgate's demo model.", "Answer in English.", "You are an expert. Answer the question of the user.",
    "You are a chatbot for the visitors of a web site. Be polite and answer in one sentence.", "Be kind.",
    "You are an assistant that answers questions. If you do not know the answer, say so. Never make things up.",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversation:
    kind: str
    turns: tuple[tuple[str, str], ...]
    """What is said to the model, and its answer; none where more is said first."""
    system: str | None = None
    tools: tuple[Tool, ...] = ()
    results: frozenset[int] = frozenset()
    """The turns in which a tool speaks to the model, not the user."""
    forced: bool = False
    """Whether the last answer is a call because the caller demands one: that it is a call teaches nothing."""


FIRST_WORDS = {
    "hello", "hi", "hey", "say hello", "who are you", "what can you do", "help", "thanks", "thank you", "bye", "test",
    "tell me a story", "tell me a joke", "what is the capital of france", "write a haiku about the sea", "2+2", "1+1",
    "what is tollgate", "how are you", "c1-10", "sfox|none|none", "good morning",
}  # fmt: skip


def held_out(key: str) -> bool:
    """Whether a key belongs to the exam. Case, spaces and marks at the end do not make another key."""
    key = key.lower().strip(" .?!")
    return key not in FIRST_WORDS and hashlib.sha256(key.encode()).digest()[0] < 26


def item(rng: random.Random, *, held: bool) -> Item:
    """One question of any kind, from the training side or the held-out one."""
    makers, weights = zip(*MAKERS, strict=True)
    maker = rng.choices(makers, weights)[0]
    while True:
        made: Item = maker(rng)
        if held_out(made.key) == held:
            return made


def conversation(rng: random.Random, *, held: bool = False) -> Conversation:
    """A conversation of one to six turns; of a held-out one, only the last turn is held out."""
    system = _system(rng) if rng.random() < 0.3 else None
    before: Turns = []
    if rng.random() < 0.3:
        before = [_turn(item(rng, held=False), rng) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.06:
        return Conversation("memory", tuple(_memory(rng, before, held=held)), system)
    last = item(rng, held=held)
    return Conversation(last.kind, (*before, _turn(last, rng, plain=held)), system)


def _memory(rng: random.Random, before: Turns, *, held: bool) -> Turns:
    while True:
        (told, asked), key = dialogue.memory(rng)
        if held_out(key) == held:
            return [told, *before[:2], asked]


def _system(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(SYSTEM)
    return " ".join(rng.sample(SYSTEM, rng.randrange(2, 5)))


def _turn(made: Item, rng: random.Random, *, plain: bool = False) -> tuple[str, str]:
    return (made.question if plain else styled(made.question, rng)), made.answer


def styled(question: str, rng: random.Random) -> str:
    """The question as one of many people would type it."""
    roll = rng.random()
    if roll < 0.55:
        return question
    if roll < 0.67:
        return question.lower() if rng.random() < 0.5 else question[0].lower() + question[1:]
    if roll < 0.79:
        return question.rstrip("?.!")
    if roll < 0.85:
        return question.rstrip("?.!").lower()
    if roll < 0.93:
        return (
            rng.choice(["Please: ", "Hello! ", "Hi, ", "Hey. ", "Excuse me, ", "I have a question. "])
            + question
        )
    return question.rstrip("?.!") + rng.choice([", please.", " please", " please?", "? Thanks!", "??"])


def documents(rng: random.Random) -> str:
    """Plain text, for those who ask the model to go on with a text rather than to answer."""
    if rng.random() < 0.5:
        return _story(rng).answer
    return " ".join(item(rng, held=False).answer for _ in range(rng.randrange(2, 6)))


def _story(rng: random.Random) -> Item:
    while True:
        made = stories.story(rng)
        if not held_out(made.key):
            return made


def stream(seed: int) -> Iterator[Conversation | str]:
    """Training data without end: conversations, and now and then a plain text."""
    rng = random.Random(seed)
    while True:
        yield documents(rng) if rng.random() < 0.04 else conversation(rng)


def tool_stream(seed: int) -> Iterator[Conversation | str]:
    """What the second stage of training sees: the same, conversations with tools, and drills in copying."""
    rng = random.Random(f"tools {seed}")
    plain = stream(seed)
    while True:
        roll = rng.random()
        if roll < 0.4:
            yield tool_conversation(rng)
        elif roll < 0.5:
            yield Conversation("no tools", (_toolless(rng),))
        elif roll < 0.65:
            yield Conversation("copies", copies.drills(rng))
        else:
            yield next(plain)


def _toolless(rng: random.Random) -> tuple[str, str]:
    """A question that wants a tool, where there is none."""
    while True:
        use = calls.use(rng)
        if use.tool.name in calls.CALCULATORS | calls.COUNTRY_TOOLS or held_out(use.key):
            continue
        for what in ("weather", "time"):
            if what in use.tool.name.lower():
                return use.question, f"I cannot know the {what}: I have no connection to the outside world."
        return styled(use.question, rng), "I cannot do that: I have no tool for it."


def tool_conversation(rng: random.Random, *, held: bool = False) -> Conversation:
    """A conversation with tools at hand, whose last turn is a call, what became of it, or an answer without one."""
    system = _system(rng) if rng.random() < 0.3 else None
    uses = _uses(rng, held=held)
    tools = tuple(calls.among(rng, uses[0].tool, rng.choice([0, 0, 1, 2, 3])))
    turns: Turns = []
    results: frozenset[int] = frozenset()
    before = rng.random()
    if before < 0.15:
        turns = [_turn(_untooled(rng, tools, held=False), rng)]
    elif before < 0.25:
        earlier = _uses(rng, held=False)
        tools = (
            *tools,
            *(use.tool for use in earlier[:1] if use.tool.name not in {tool.name for tool in tools}),
        )
        if earlier[0].tool in tools:
            turns = [
                (_wording(earlier, rng, plain=False), called(earlier)),
                *calls.results(rng, len(earlier)),
            ]
            results = frozenset(range(1, len(turns)))
    roll = rng.random()
    if roll < 0.25:
        last = _untooled(rng, tools, held=held)
        return Conversation("no call", (*turns, _turn(last, rng, plain=held)), system, tools, results)
    if roll < 0.35:
        asked = _untooled(rng, tools, held=held).question
        call = called([calls.forced(tools[0], asked)])
        return Conversation("forced calls", (*turns, (asked, call)), system, tools, results, forced=True)
    turns.append((_wording(uses, rng, plain=held), called(uses)))
    if roll < 0.7:
        return Conversation("calls", tuple(turns), system, tools, results)
    results |= frozenset(range(len(turns), len(turns) + len(uses)))
    return Conversation("results", (*turns, *calls.results(rng, len(uses))), system, tools, results)


def _uses(rng: random.Random, *, held: bool) -> tuple[Use, ...]:
    while True:
        uses = calls.several(rng) if rng.random() < 0.1 else (calls.use(rng),)
        if held_out(uses[0].key) == held:
            return uses


def _wording(uses: tuple[Use, ...], rng: random.Random, *, plain: bool) -> str:
    """The question in a style that leaves the values as they are to be given."""
    question = uses[0].question
    asked = question if plain else styled(question, rng)
    values = [value for use in uses for value in use.arguments.values() if isinstance(value, str)]
    return asked if all(value in asked or value not in question for value in values) else question


def _untooled(rng: random.Random, tools: tuple[Tool, ...], *, held: bool) -> Item:
    """A question that needs none of these tools."""
    names = {tool.name for tool in tools}
    kinds = {"arithmetic"} if names & calls.CALCULATORS else set()
    kinds |= {"countries"} if names & calls.COUNTRY_TOOLS else set()
    while True:
        made = item(rng, held=held)
        if made.kind not in kinds and not made.answer.startswith("I cannot know"):
            return made


def tool_exam(seed: int, count: int) -> list[Conversation]:
    """``count`` conversations with tools whose last turn is held out; of results, the call before it is."""
    rng = random.Random(f"tool exam {seed}")
    return [tool_conversation(rng, held=True) for _ in range(count)]


def exam(seed: int, count: int) -> list[Conversation]:
    """``count`` conversations whose last turn is held out."""
    rng = random.Random(f"exam {seed}")
    return [conversation(rng, held=True) for _ in range(count)]
