"""A question's features: which words it has, and its shape. The same in training and in serving."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gateway.types import ChatRequest, Json

MAX_TEXT = 4000
"""Characters of the question that are used: its beginning, and its end where it is longer."""

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[^\sa-z\d]")
_OPTION = re.compile(r"^\(?[A-Ea-e][.)] ", re.MULTILINE)
_DIGIT = re.compile(r"\d")
_CAPITAL = re.compile(r"[A-Z]")
_MARKS = ("$", "%", "=", "?", "\\", "_", "(", '"', ":", "\n", "^", "{", "+", "/")

SHAPE = (
    "length",
    "words",
    "word_length",
    "digits",
    "digit_share",
    "capital_share",
    "options",
    "longest_line",
    "shortest_line",
    "first_line",
    *(f"count {mark}" for mark in _MARKS),
)
"""The names of ``shape``'s numbers, in order."""


def words(text: str) -> set[str]:
    """The different words and signs of ``text``; of a number, only how long it is."""
    return {"0" * min(len(word), 4) if word[0].isdigit() else word for word in _WORD.findall(text.lower())}


def shape(text: str) -> list[float]:
    """Measures of ``text``; counts and lengths as logarithms."""
    log = math.log1p
    size = max(len(text), 1)
    count = max(len(text.split()), 1)
    digits = len(_DIGIT.findall(text))
    lengths = [*map(len, text.split("\n"))]
    return [
        log(size),
        log(count),
        size / count,
        log(digits),
        digits / size,
        len(_CAPITAL.findall(text)) / size,
        float(min(len(_OPTION.findall(text)), 5)),
        log(max(lengths)),
        log(min(lengths)),
        log(lengths[0]),
        *[log(text.count(mark)) for mark in _MARKS],
    ]


def question_of(request: ChatRequest) -> tuple[str, int]:
    """What is scored: the last user message, cut to ``MAX_TEXT``, and the length of the whole conversation."""
    question, length = "", 0
    if request.messages is None:
        question = _prompt_text(request.prompt)
        length = len(question)
    else:
        for message in request.messages:
            text = _content_text(message.get("content"))
            length += len(text)
            if message.get("role") == "user":
                question = text
    return clipped(question), length


def clipped(text: str) -> str:
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else text[:half] + text[-half:]


def _content_text(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _prompt_text(prompt: Json) -> str:
    """A prompt of token ids has no text to look at."""
    if isinstance(prompt, str):
        return prompt
    prompts = prompt if isinstance(prompt, list) else []
    return "\n".join(text for text in prompts if isinstance(text, str))
