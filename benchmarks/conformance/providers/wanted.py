"""What a request asks for and what is said to it, apart from any API's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.errand import Call


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A request: its last message, what may be called, and how long the answer may be."""

    words: str
    picture: int = 0
    """The bytes of a picture in the last message."""
    tools: Mapping[str, Mapping[str, Any]]
    """The schemas of the tools' arguments, by name."""
    choice: str = "auto"
    """``auto``, ``none``, ``any``, or the tool to call."""
    answered: bool = False
    """The last message is a tool's result."""
    schema: Mapping[str, Any] | None = None
    limit: int | None = None
    stops: Sequence[str] = ()
    thinks: bool = False
    errand: tuple[Call, ...] | None = None
    """The calls that a coding agent's user asks for."""


@dataclass(frozen=True)
class Answer:
    thought: str
    """Empty where none was asked for."""
    calls: tuple[tuple[str, Any], ...]
    """Names and arguments. An answer with calls has no words."""
    text: said.Text

    @property
    def tokens(self) -> int:
        """Of words and calls, without the thought."""
        return len(self.text.tokens) + sum(
            len(said.split(orjson.dumps(args).decode())) for _, args in self.calls
        )

    @property
    def thought_tokens(self) -> int:
        return len(said.split(self.thought))


def answer(wanted: Wanted) -> Answer:
    thought = said.THOUGHT if wanted.thinks else ""
    if calls := _calls(wanted):
        return Answer(thought, calls, said.Text(()))
    whole = said.TEXT
    if wanted.schema is not None:
        whole = orjson.dumps(said.instance(wanted.schema)).decode()
    elif wanted.picture:
        whole = said.picture(wanted.picture)
    return Answer(thought, (), said.text(whole, limit=wanted.limit, stops=wanted.stops))


def _calls(wanted: Wanted) -> tuple[tuple[str, Any], ...]:
    if wanted.errand is not None:
        return wanted.errand
    match wanted.choice:
        case "none":
            names: list[str] = []
        case "auto":
            names = [] if wanted.answered else list(wanted.tools)
        case "any":
            names = list(wanted.tools)
        case name:
            names = [name]
    return tuple((name, said.instance(wanted.tools[name])) for name in names)
