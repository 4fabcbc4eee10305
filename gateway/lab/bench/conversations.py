"""What is asked: conversations of one turn or more, the same for the same seeds.

Each server and load gets words of its own, of the same lengths: two servers that are two ways to one model would
otherwise find one another's prompts in its prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import Any, Protocol

import orjson

from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.lengths import Lengths
from gateway.lab.bench.trace import BLOCK, Arrival
from gateway.lab.bench.words import Scale, text

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and how long the answer may be; None leaves that to the server."""

    content: Any
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """``opening`` goes before the first turn; answers are put between the turns as they come."""

    turns: Sequence[Turn]
    opening: Sequence[Message] = ()
    at: float = 0.0
    """Of one from a trace: when it began there."""


class Workload(Protocol):
    def conversations(self, draws: str, words: str, scale: Scale) -> Iterator[Conversation]:
        """From the first on. ``draws`` and ``words`` are the seeds of lengths and of what fills them."""
        ...

    @property
    def makes_text(self) -> bool:
        """Of lengths in tokens, so that it matters how the server counts."""
        ...


@dataclass(frozen=True)
class Drawn:
    """Lengths drawn from distributions, or those of a trace over and over, without its times."""

    prompt: Lengths
    output: Lengths
    turns: int = 1
    prefix_tokens: int = 0
    prefixes: int = 1
    """Each conversation begins with one of so many texts of ``prefix_tokens``."""
    lengths_of: Sequence[Arrival] = ()
    makes_text: bool = field(default=True, init=False)

    def conversations(self, draws: str, words: str, scale: Scale) -> Iterator[Conversation]:
        rows = cycle(self.lengths_of) if self.lengths_of else None
        bare = Scale(scale.per_word)
        blocks = _Blocks(words, bare)
        prefixes = [
            text(bare.words(self.prefix_tokens), Random(f"{words}/prefix {number}"))
            for number in range(self.prefixes if self.prefix_tokens else 0)
        ]
        for number in count():
            drawn, random = Random(f"{draws}/{number}"), Random(f"{words}/{number}")
            if rows is not None:
                yield blocks.conversation(next(rows), scale, random)
                continue
            opening = [{"role": "system", "content": drawn.choice(prefixes)}] if prefixes else []
            turns = []
            for place in range(self.turns):
                tokens = self.prompt.draw(drawn)
                said = text((bare if place else scale).words(tokens), random)
                turns.append(Turn(said, self.output.draw(drawn)))
            yield Conversation(turns, opening)


@dataclass(frozen=True)
class Traced:
    """A trace, once, on its own schedule."""

    arrivals: Sequence[Arrival]
    makes_text: bool = field(default=True, init=False)

    def conversations(self, draws: str, words: str, scale: Scale) -> Iterator[Conversation]:
        blocks = _Blocks(words, Scale(scale.per_word))
        for number, arrival in enumerate(self.arrivals):
            yield blocks.conversation(arrival, scale, Random(f"{words}/{number}"))


class _Blocks:
    """Prompts of a trace: the same text for the same hash id."""

    def __init__(self, seed: str, words: Scale) -> None:
        self._words = words.words(BLOCK)
        self._text = lru_cache(4096)(lambda block: text(self._words, Random(f"{seed}/block {block}")))

    def conversation(self, arrival: Arrival, scale: Scale, random: Random) -> Conversation:
        left = scale.words(arrival.prompt_tokens)
        parts = []
        for block in arrival.blocks:
            if left >= self._words:
                parts.append(self._text(block))
            elif left > 0:
                parts.append(" ".join(self._text(block).split(" ", left)[:left]))
            left -= self._words
        if left > 0:
            parts.append(text(left, random))
        turn = Turn(" ".join(parts), max(1, arrival.output_tokens))
        return Conversation([turn], at=arrival.at)


@dataclass(frozen=True)
class Given:
    """Prompts of one's own, in their order, over and over."""

    rows: Sequence[Conversation]
    makes_text: bool = field(default=False, init=False)

    def conversations(self, draws: str, words: str, scale: Scale) -> Iterator[Conversation]:
        return cycle(self.rows)


def read_prompts(path: Path, output: Lengths | None, seed: int) -> list[Conversation]:
    """JSON lines: a ``prompt``, or ``turns`` (several), or ``messages``, also as ``body`` of OpenAI's batches have
    them; ``max_tokens`` or ``output_tokens`` where they are there, else drawn from ``output``."""
    rows: list[Conversation] = []
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_given(orjson.loads(line), output, Random(f"{seed}/{number}")))
    except OSError as error:
        raise OptionError(f"--prompts: {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise OptionError(
            f"--prompts: {path}:{number}: {error}; a line is {{'prompt': '…'}}, {{'turns': ['…', '…']}} or "
            "{'messages': [{'role': 'user', 'content': '…'}]}, with 'max_tokens' if you like"
        ) from None
    if not rows:
        raise OptionError(f"--prompts: {path}: no prompts in it")
    return rows


def _given(row: Mapping[str, Any], output: Lengths | None, random: Random) -> Conversation:
    row = row.get("body", row)
    told = row.get("max_tokens", row.get("max_completion_tokens", row.get("output_tokens")))
    tokens = int(told) if told is not None else output.draw(random) if output is not None else None
    opening: list[Message] = []
    if "messages" in row:
        *opening, last = row["messages"]
        contents = [last["content"]]
    elif "turns" in row:
        contents = list(row["turns"])
    else:
        contents = [row.get("prompt")]
    if row.get("system") and "messages" not in row:
        opening = [{"role": "system", "content": row["system"]}]
    if not contents or not all(contents):
        raise ValueError("nothing is asked")
    return Conversation([Turn(content, tokens) for content in contents], opening)
