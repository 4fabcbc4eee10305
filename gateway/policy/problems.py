"""What can be wrong with a policy folder: all problems at once, each as ``file:line: message``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""The path of a value in a policy: mapping keys and list indexes, outermost first."""


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A line of a file; lines count from 1."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem. ``message`` begins with the key path where there is one, and says what to write instead.

    ``line`` is 0 for what is wrong with a file or a folder as a whole.
    """

    file: Path
    line: int
    message: str
    rule: str = field(default="invalid-policy", compare=False)
    """What found it, for those who sort: ``unknown-key``, ``yaml``, a rule of ``gateway.policy.rules`` by its name."""
    path: str = field(default="", compare=False)

    @classmethod
    def at(
        cls, location: Location, message: str, path: KeyPath = (), rule: str = "invalid-policy"
    ) -> Problem:
        where = render(path)
        told = f"{where}: {message}" if path else message
        return cls(location.file, location.line, told, rule, where)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


class Diagnostic(NamedTuple):
    """A problem at a key path; the file and line are found later."""

    path: KeyPath
    message: str
    clash: KeyPath | None = None
    """The path of the other value, where two collide."""
    rule: str = ""


class PolicyError(Exception):
    """An invalid policy folder; ``problems`` is everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


def render(path: KeyPath) -> str:
    """``("models", "a", "targets", 0)`` as ``models.a.targets[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggestion(word: str, known: Sequence[str]) -> str:
    """``; did you mean 'base_url'?`` where a known word is close, else the known words."""
    if close := get_close_matches(word, known, n=1, cutoff=0.6):
        return f"; did you mean '{close[0]}'?"
    return f"; there is {listed(known)}" if known else ""


def listed(words: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(f"'{word}'" for word in words[:limit])
    return shown + (f" and {len(words) - limit} more" if len(words) > limit else "")
