"""What readers of tool calls are made of: coroutines that get a text character by character."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any

Reading = Generator[None, str, str]
"""Gets characters by ``send``; returns what it has read."""


class Broken(Exception):
    """What is being parsed is not a call."""


class Source:
    """The next character, of which one may be pushed back."""

    def __init__(self) -> None:
        self.pushed_back = ""

    def next(self) -> Reading:
        if self.pushed_back:
            char, self.pushed_back = self.pushed_back, ""
            return char
        return (yield)

    def sign(self, *wanted: str) -> Reading:
        """The next character that is not white space, which must be one of ``wanted``, if given."""
        while (char := (yield from self.next())) in (" ", "\t", "\r", "\n"):
            pass
        if wanted and char not in wanted:
            raise Broken
        return char

    def value(self, char: str, sink: Callable[[str], None] | None = None) -> Reading:
        """A JSON value that begins with ``char``: its text, of which only brackets are checked."""
        text: list[str] = []
        put = sink or text.append
        open_, quote, escaped = "", False, False
        while True:
            if quote:
                quote = escaped or char != '"'
                escaped = char == "\\" and not escaped
            elif char == '"':
                quote = True
            elif char in "{[":
                open_ += "}" if char == "{" else "]"
            elif char in "}]":
                if open_ and open_[-1] != char:
                    raise Broken
                if not open_:  # behind a number or a word
                    self.pushed_back = char
                    break
                open_ = open_[:-1]
            elif not open_ and char in ", \t\r\n":
                self.pushed_back = char
                break
            elif not open_ and not (char.isalnum() or char in "+-."):
                raise Broken
            put(char)
            if not open_ and not quote and char in '"}]':
                break
            char = yield from self.next()
        found = "".join(text)
        if sink is None:
            decoded(found)
        return found


def decoded(source: str) -> Any:
    """Raises ``Broken``."""
    try:
        found = json.loads(source)
        if isinstance(found, str):
            found.encode()  # half a surrogate pair is not Unicode
    except (ValueError, RecursionError):
        raise Broken from None
    return found


def is_object(source: str) -> bool:
    try:
        return isinstance(json.loads(source), dict)
    except (ValueError, RecursionError):
        return False


def is_held(before: str, name: str, key: str, char: str) -> bool:
    """Whether the grammar of strict tools (``tools_strict.py``) holds arguments that stand there: an object, right
    behind the call's name. ``before``, ``key``: the keys of what is before the arguments and of these, as they are
    written, and so is ``name``; ``char``: the arguments' first."""
    return before == '"name"' and "\\" not in name + key and char == "{"
