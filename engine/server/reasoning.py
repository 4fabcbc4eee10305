"""Reasoning before an answer: how a model marks it, by its chat template, and that taken out of its text.

- ``think``: ``<think>…</think>`` before the answer; DeepSeek-R1, Qwen3, GLM, SmolLM3 and many others
- ``seed``: ``<seed:think>…</seed:think>``; Seed-OSS
- ``mistral``: ``[THINK]…[/THINK]``; Magistral
- ``harmony``: messages in channels, ``<|channel|>analysis<|message|>…<|end|>`` and then
  ``<|start|>assistant<|channel|>final<|message|>…``; gpt-oss (https://cookbook.openai.com/articles/openai-harmony)

Where a template opens the tag in the prompt, the answer begins inside. Markers that are tokens of their own are decoded
as half a surrogate pair, which no other token decodes to: a model that quotes its tag, letter by letter, does not end
its reasoning with that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.server.detokenizer import overlap

THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Names by which clients and templates call a message's reasoning."""
_SIGN = 0xDC00
_LONGEST_HEADER = 256
"""Characters of a channel's header; what is longer is none."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    name: str
    begin: str
    end: str
    markers: tuple[str, ...]
    """Texts that part reasoning from the answer, ``begin`` and ``end`` first."""
    closing: tuple[str, ...]
    """What ends reasoning that takes too long, one text a marker or between markers."""
    variables: tuple[str, ...] = ("enable_thinking", "thinking")
    """What templates call the switch."""


def _tags(name: str, begin: str, end: str) -> ReasoningFormat:
    return ReasoningFormat(name, begin, end, (begin, end), (end,))


THINK = _tags("think", "<think>", "</think>")
SEED = _tags("seed", "<seed:think>", "</seed:think>")
MISTRAL = _tags("mistral", "[THINK]", "[/THINK]")
HARMONY = ReasoningFormat(
    "harmony",
    "<|channel|>",
    "<|end|>",
    ("<|channel|>", "<|end|>", "<|message|>", "<|start|>"),
    ("<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"),
)


def detect(template: str) -> ReasoningFormat | None:
    """The format that a chat template's source shows; ``None`` for a model that does not reason."""
    if HARMONY.begin in template and "analysis" in template:
        return HARMONY
    return next((one for one in (SEED, MISTRAL, THINK) if one.end in template), None)


Place = Literal["inside", "before", "outside"]
"""Where an answer begins: in reasoning, where reasoning may begin, or behind it."""


def place_of(format: ReasoningFormat, prompt: str, continued: str | None = None) -> Place:
    """``prompt`` with the template around it; ``continued``: the text that the answer goes on with, if any."""
    if continued is not None:
        opened = continued.rfind(format.begin) > continued.rfind(format.end)
        return "inside" if opened and format is not HARMONY else "outside"
    end = prompt.rstrip()
    if format is HARMONY:
        return "before"
    return "inside" if end.endswith(format.begin) else "outside" if end.endswith(format.end) else "before"


def shown(format: ReasoningFormat, id_of: Callable[[str], int | None]) -> tuple[dict[int, str], list[str]]:
    """What the markers' tokens are decoded as, by id, and each marker as it is then found in the text."""
    tokens, texts = {}, []
    for i, marker in enumerate(format.markers):
        number = id_of(marker)
        if number is not None:
            tokens[number] = chr(_SIGN + i)
        texts.append(marker if number is None else chr(_SIGN + i))
    return tokens, texts


class ReasoningSplit(Protocol):
    """Takes reasoning out of a text that comes in pieces. However it is cut into pieces, the sums are the same."""

    @property
    def inside(self) -> bool:
        """Whether reasoning goes on."""

    @property
    def begins(self) -> int | None:
        """Characters of the whole text before the answer; ``None`` while that is not known."""

    @property
    def settled(self) -> int:
        """Until then: characters of which is certain that the answer does not begin among them."""

    def push(self, text: str) -> str:
        """The answer's part of it; the reasoning's is added to what ``take`` gives."""

    def finish(self) -> str:
        """The rest of the answer."""

    def take(self) -> str:
        """The reasoning since the last call."""


def split(format: ReasoningFormat, texts: Sequence[str], place: Place) -> ReasoningSplit | None:
    """``texts``: the markers as the text has them, from ``shown``."""
    if place == "outside":
        return None
    if format is HARMONY:
        return ChannelSplit(texts)
    return TagSplit(format, texts, inside=place == "inside")


class TagSplit:
    """White space around reasoning is dropped."""

    def __init__(self, format: ReasoningFormat, texts: Sequence[str], *, inside: bool) -> None:
        self._begin, self._end = texts[:2]
        self._literals = list(zip(texts, format.markers, strict=True))
        self._state: Literal["before", "inside", "after", "outside"] = "inside" if inside else "before"
        self._held = ""
        self._thought: list[str] = []
        self._thinking = False
        """Whether any of the reasoning but white space has come."""
        self._read = 0
        """Characters that were pushed."""
        self.begins: int | None = None

    @property
    def inside(self) -> bool:
        return self._state == "inside"

    @property
    def settled(self) -> int:
        return 0 if self._state == "before" else self._read

    def push(self, text: str) -> str:
        self._read += len(text)
        if self._state == "outside":
            return _literal(text, self._literals)
        self._held += text
        if self._state == "before":
            self._look()
        if self._state == "inside":
            self._think()
        if self._state == "after" and (rest := self._held.lstrip()):
            self._open(rest)
        if self._state != "outside":
            return ""
        found, self._held = self._held, ""
        return _literal(found, self._literals)

    def finish(self) -> str:
        held, self._held = self._held, ""
        if self._state == "inside":
            self._thought.append(_literal(held, self._literals))
        if self._state != "before":
            return ""
        self.begins = 0
        return _literal(held, self._literals)

    def take(self) -> str:
        found = "".join(self._thought)
        self._thought.clear()
        return found

    def _look(self) -> None:
        rest = self._held.lstrip()
        if rest.startswith(self._begin):
            self._state, self._held = "inside", rest[len(self._begin) :]
        elif not self._begin.startswith(rest):
            self._open(self._held)

    def _open(self, text: str) -> None:
        self._state, self._held, self.begins = "outside", text, self._read - len(text)

    def _think(self) -> None:
        text = self._held if self._thinking else self._held.lstrip()
        place = text.find(self._end)
        if place >= 0:
            self._state, self._held = "after", text[place + len(self._end) :]
            certain = text[:place].rstrip()
        else:
            certain = text[: len(text) - overlap(text, self._end)].rstrip()
            self._held = text[len(certain) :]
        self._thinking = self._thinking or bool(certain)
        self._thought.append(_literal(certain, self._literals))


_RECIPIENT = re.compile(r"to=([^\s<\ud800-\udfff]+)")


class ChannelSplit:
    """``analysis`` is reasoning; ``final`` and remarks between calls (``commentary``) are the answer, and so is,
    with a header, a message to a recipient: a call, which is for the parser of calls to read. Models write its header
    in several ways, of which one is passed on."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._channel, self._end, self._message, self._start = texts
        self._literals = list(zip(texts, HARMONY.markers, strict=True))
        self._in_header = True
        self._to_thought = False
        self._last: bool | None = None
        """Where the last text went: to the reasoning (``True``), or to the answer."""
        self._held = ""
        self._thought: list[str] = []
        self._read = 0
        self.begins: int | None = None

    @property
    def inside(self) -> bool:
        return self.begins is None

    @property
    def settled(self) -> int:
        return self._read if self._last is not None else 0

    def push(self, text: str) -> str:
        self._read += len(text)
        out, self._held = [], self._held + text
        while self._held:
            if not (self._read_header(out) if self._in_header else self._read_message(out)):
                break
        return "".join(out)

    def finish(self) -> str:
        out: list[str] = []
        if not self._in_header or self._last is None:
            # In a message, or in no channel at all.
            self.begins = self.begins or (None if self._to_thought else 0)
            self._say(self._held, out)
        self._held = ""
        return "".join(out)

    def take(self) -> str:
        found = "".join(self._thought)
        self._thought.clear()
        return found

    def _read_header(self, out: list[str]) -> bool:
        """Whether there was progress."""
        place = self._held.find(self._message)
        if place < 0 and len(self._held) <= _LONGEST_HEADER:
            return False
        header, rest = self._held[: max(place, 0)], self._held[max(place, 0) :].removeprefix(self._message)
        self._in_header, self._held = False, rest
        addressed = _RECIPIENT.search(header)
        thinks = header.rpartition(self._channel)[2].startswith("analysis")
        self._to_thought = thinks and addressed is None
        if not self._to_thought and self.begins is None:
            self.begins = self._read - len(rest)
        if addressed:
            self._say(f"{self._channel}commentary to={addressed[1]}{self._message}", out)
        elif self._last is self._to_thought:
            self._say("\n\n", out)
        return True

    def _read_message(self, out: list[str]) -> bool:
        place = self._held.find(self._end)
        keep = overlap(self._held, self._end)
        certain = self._held[:place] if place >= 0 else self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :].removeprefix(self._end if place >= 0 else "")
        self._in_header = place >= 0
        self._say(certain, out)
        return place >= 0

    def _say(self, text: str, out: list[str]) -> None:
        if text:
            self._last = self._to_thought
            (self._thought if self._to_thought else out).append(_literal(text, self._literals))


def _literal(text: str, literals: Sequence[tuple[str, str]]) -> str:
    """A marker where it parts nothing is text."""
    for sign, marker in literals:
        if len(sign) == 1 and sign in text:
            text = text.replace(sign, marker)
    return text
