"""What an answer must be: the checks that need nobody else's opinion."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.lab.evaluate.answer import Answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """``score`` is from 0 to 1; ``why`` is for who reads the failures."""

    passed: bool
    score: float
    why: str = ""


PASSED = Verdict(True, 1.0)


def failed(why: str) -> Verdict:
    return Verdict(False, 0.0, why)


@dataclass(frozen=True, slots=True)
class Exact:
    """The answer is this text; space around it and within it counts once."""

    text: str
    ignore_case: bool = False

    def __call__(self, answer: Answer) -> Verdict:
        return PASSED if self._plain(answer.text) == self._plain(self.text) else failed("another text")

    def _plain(self, text: str) -> str:
        joined = " ".join(text.split())
        return joined.casefold() if self.ignore_case else joined


@dataclass(frozen=True, slots=True)
class Matches:
    """Python's ``re.search`` finds it."""

    pattern: re.Pattern[str]

    def __call__(self, answer: Answer) -> Verdict:
        if self.pattern.search(answer.text):
            return PASSED
        return failed(f"nothing matches {self.pattern.pattern!r}")


@dataclass(frozen=True, slots=True)
class FollowsSchema:
    """The answer is JSON, alone or in a fence, that a JSON Schema takes. ``errors`` says what it does not take."""

    errors: Callable[[Any], str | None]

    def __call__(self, answer: Answer) -> Verdict:
        try:
            value = json.loads(unfenced(answer.text))
        except (ValueError, RecursionError) as error:
            return failed(f"no JSON: {error}")
        wrong = self.errors(value)
        return PASSED if wrong is None else failed(wrong)


@dataclass(frozen=True, slots=True)
class CallsTool:
    """One of its calls has this name and these arguments: equal as JSON; with ``partial`` more are allowed."""

    name: str
    arguments: Mapping[str, Any] | None
    partial: bool = False

    def __call__(self, answer: Answer) -> Verdict:
        if not answer.tool_calls:
            return failed("no tool was called")
        for name, text in answer.tool_calls:
            if name == self.name and self._takes(text):
                return PASSED
        return failed("called " + ", ".join(f"{name}({text})" for name, text in answer.tool_calls))

    def _takes(self, text: str) -> bool:
        if self.arguments is None:
            return True
        try:
            given = json.loads(text or "{}")
        except (ValueError, RecursionError):
            return False
        if self.partial and isinstance(given, dict):
            given = {key: value for key, value in given.items() if key in self.arguments}
        return same_json(given, dict(self.arguments))


@dataclass(frozen=True, slots=True)
class CallsNoTool:
    def __call__(self, answer: Answer) -> Verdict:
        return failed(f"called {answer.tool_calls[0][0]}") if answer.tool_calls else PASSED


_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class IsNumber:
    """The last number of the answer is this one, within ``tolerance`` (absolute) or ``relative`` (a share) of it."""

    value: float
    tolerance: float = 0.0
    relative: float = 0.0

    def __call__(self, answer: Answer) -> Verdict:
        found = [text for text in _NUMBER.findall(answer.text) if any(map(str.isdigit, text))]
        if not found:
            return failed("no number")
        number = float(found[-1].replace(",", ""))
        # A difference of rounding alone is none.
        room = max(self.tolerance, self.relative * abs(self.value), 1e-12 * abs(self.value))
        return PASSED if math.isfinite(number) and abs(number - self.value) <= room else failed(f"{number:g}")


def unfenced(text: str) -> str:
    """What stands in the answer's only fence; the text itself where it has none."""
    fences = re.findall(r"```[^\n`]*\n(.*?)```", text, flags=re.DOTALL)
    return fences[0] if len(fences) == 1 else text


def same_json(one: Any, other: Any) -> bool:
    """As JSON compares: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)
