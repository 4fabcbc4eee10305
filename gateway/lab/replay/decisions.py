"""What became of each request of a replay, in columns: a million take some 60 MB."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

KINDS = ("answered", "cached", "downgraded", "rerouted", "cut", "left", "blocked", "refused", "failed")
"""Answered: by the model that was asked for. Cut: by a guard, in the middle. Left: its caller did. Refused: by the
gateway; blocked: by a guard; failed: no backend gave an answer."""
ANSWERED, CACHED, DOWNGRADED, REROUTED, CUT, LEFT, BLOCKED, REFUSED, FAILED = range(len(KINDS))
NONE = math.nan

_NUMBERS = {
    "at": "d",
    "waited": "f",
    "ttft": "f",
    "duration": "f",
    "prompt": "L",
    "completion": "L",
    "cached": "L",
    "cost": "q",
    "kind": "B",
    "status": "H",
    "attempts": "B",
}
_NAMES = ("tenant", "tier", "key", "asked", "model", "backend", "why", "reason", "lines")


class Decision(NamedTuple):
    """Of one request. ``waited``, ``ttft`` and ``duration`` are seconds, or NaN; ``cost`` is nano-dollars."""

    at: float
    waited: float
    ttft: float
    duration: float
    prompt: int
    completion: int
    cached: int
    cost: int
    kind: int
    status: int
    attempts: int
    tenant: str
    tier: str
    key: str
    asked: str
    model: str
    backend: str
    why: str
    reason: str
    lines: str
    """Of the policy, that decided: as many lines of text as there are."""


class Decisions:
    """Those of one policy, by the request's number in order of arrival."""

    def __init__(self, count: int) -> None:
        self.numbers: dict[str, array[Any]] = {
            name: array(code, bytes(array(code).itemsize * count)) for name, code in _NUMBERS.items()
        }
        self.names = {name: array("L", bytes(array("L").itemsize * count)) for name in _NAMES}
        self.texts: dict[str, list[str]] = {name: [""] for name in _NAMES}
        self._known: dict[str, dict[str, int]] = {name: {"": 0} for name in _NAMES}
        self.ids: list[str] = []
        """Of the requests, where the trace has any."""
        self.facts: dict[str, Any] = {}
        """Of the whole: what was assumed, what backends took."""

    def __len__(self) -> int:
        return len(self.numbers["at"])

    def put(self, number: int, values: Mapping[str, float | int | str]) -> None:
        numbers, known = self.numbers, self._known
        for name, value in values.items():
            column = numbers.get(name)
            if column is not None:
                column[number] = value
                continue
            text = str(value)
            place = known[name].get(text)
            if place is None:
                place = known[name][text] = len(self.texts[name])
                self.texts[name].append(text)
            self.names[name][number] = place

    def __getitem__(self, number: int) -> Decision:
        values: list[Any] = [column[number] for column in self.numbers.values()]
        values += [self.text(name, number) for name in _NAMES]
        return Decision(*values)

    def __iter__(self) -> Iterator[Decision]:
        return map(self.__getitem__, range(len(self)))

    def column(self, name: str) -> Sequence[Any]:
        return self.numbers[name]

    def text(self, name: str, number: int) -> str:
        return self.texts[name][self.names[name][number]]

    def name(self, number: int, request_id: str) -> None:
        if not self.ids:
            self.ids = [""] * len(self)
        self.ids[number] = request_id

    def called(self, number: int) -> str:
        """Its id, or its place in the trace."""
        return self.ids[number] if self.ids and self.ids[number] else f"#{number + 1}"

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            head = {"count": len(self), "texts": self.texts, "facts": self.facts, "ids": self.ids}
            file.write(json.dumps(head).encode() + b"\n")
            for column in (*self.numbers.values(), *self.names.values()):
                column.tofile(file)

    @classmethod
    def load(cls, path: Path) -> Decisions:
        with path.open("rb") as file:
            head = json.loads(file.readline())
            found = cls(0)
            for column in (*found.numbers.values(), *found.names.values()):
                column.fromfile(file, head["count"])
        found.texts, found.facts, found.ids = head["texts"], head["facts"], head["ids"]
        return found
