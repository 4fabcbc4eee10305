"""A configuration that is read part by part, and remembers what of it was: the rest is told, and nothing lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from gateway.lab.migration.report import Report

_MOST = 1e9
"""Beyond any limit, time in seconds or price."""
_VARIABLE = re.compile(r"os\.environ/(\w+)", re.ASCII)


class Source:
    """A mapping of the configuration."""

    def __init__(self, content: Any, where: str, report: Report) -> None:
        self._content: Mapping[str, Any] = content if isinstance(content, Mapping) else {}
        self.where = where
        self._report = report
        self._read: set[str] = set()

    def at(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def has(self, key: str) -> bool:
        return self._content.get(key) is not None

    def names(self, key: str) -> bool:
        """Also where nothing is written behind it."""
        return key in self._content

    def get(self, key: str) -> Any:
        self._read.add(key)
        return self._content.get(key)

    def part(self, key: str) -> Source:
        found = self.get(key)
        return found if isinstance(found, Source) else Source(found, self.at(key), self._report)

    def parts(self, key: str) -> list[Source]:
        """The mappings of a list."""
        found = self.get(key)
        entries = found if isinstance(found, list) else []
        return [Source(one, f"{self.at(key)}[{index}]", self._report) for index, one in enumerate(entries)]

    def words(self, key: str) -> list[str]:
        """The texts of a list, or the one that stands there alone."""
        found = self.get(key)
        return [str(one) for one in (found if isinstance(found, list) else [found]) if one is not None]

    def text(self, key: str) -> str | None:
        """As a policy has it: a variable as ``${NAME}``, and what looks like one escaped."""
        found = self.get(key)
        if isinstance(found, list | dict):
            self._report.dropped(self.at(key), "a text should stand here", "write it into the policy")
            return None
        return None if found is None else policy_text(str(found))

    def number(self, key: str) -> float | None:
        """Of a plausible size, and not below zero."""
        found = self.get(key)
        if found is None or isinstance(found, bool):
            return None
        number = finite(found)
        if number is None or not 0 <= number <= _MOST:
            self._report.dropped(
                self.at(key), f"'{str(found)[:40]}' is no number here", "write the number into the policy"
            )
            return None
        return number

    def count(self, key: str) -> int | None:
        """A limit: nothing where it is none."""
        number = self.number(key)
        return None if number is None else max(1, round(number))

    def skip(self, *keys: str) -> None:
        """They mean nothing here, and nothing is lost."""
        self._read.update(keys)

    def left(self) -> Iterator[tuple[str, Any]]:
        """What has not been read and says something."""
        return (
            (key, value)
            for key, value in self._content.items()
            if key not in self._read and not says_nothing(value)
        )

    def finish(self, advice: Mapping[str, tuple[str, str]] = {}) -> None:
        """Tell of all that has not been read, with what is known of it."""
        for key, _ in self.left():
            what, todo = advice.get(key, (f"'{key}' has no counterpart that the importer knows", ""))
            self._report.dropped(self.at(key), what, todo)


def finite(value: Any) -> float | None:
    """A number, or a text that is one."""
    try:
        number = None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and isfinite(number) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """It, or an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """A list, or the one value that stands there alone."""
    return value if isinstance(value, list) else [] if value is None else [value]


def says_nothing(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def policy_text(text: str) -> str:
    if match := _VARIABLE.fullmatch(text.strip()):
        return f"${{{match[1]}}}"
    return text.replace("${", "$${")


def is_variable(text: str) -> bool:
    return text.startswith("${")
