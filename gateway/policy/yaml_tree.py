"""YAML text as a tree of values that know their file and line.

libyaml's events are read one by one, without recursion, so neither deep nesting nor an alias bomb can hang or
crash the reader. Scalars are typed by YAML 1.2's core schema (https://yaml.org/spec/1.2.2/#103-core-schema)
without its octal and hexadecimal numbers: ``no``, ``on``, ``0123`` and ``12:30`` are the text they look like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from gateway.policy.environment import protect, restore, substitute
from gateway.policy.problems import KeyPath, Location, Problem

MAX_DEPTH = 50
MAX_VALUES = 250_000
"""Values that aliases may add to those that are written in a file."""

LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*([eE][-+]?[0-9]{1,2})?|[0-9]+[eE][-+]?[0-9]{1,2})")
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})


@dataclass(slots=True)
class Scalar:
    """A single value: the ``text`` that is written, and its ``value``."""

    location: Location
    text: str
    value: str | int | float | bool | None
    unset: tuple[str, ...] = ()
    """Environment variables without a default that are not set."""
    empty: tuple[str, ...] = ()
    """Environment variables without a default that are set to nothing."""
    used: bool = False
    """It has references to environment variables."""
    broken: bool = False
    """A reference in it is malformed, which was reported."""
    size: int = 1
    depth: int = 0


@dataclass(slots=True)
class Sequence:
    location: Location
    items: list[Node] = field(default_factory=list)
    size: int = 1
    depth: int = 1


@dataclass(slots=True)
class Map:
    location: Location
    entries: dict[str, Entry] = field(default_factory=dict)
    size: int = 1
    """Values in it, itself and what its aliases stand for included."""
    depth: int = 1
    """Levels in it, those of its aliases included."""


Node = Scalar | Sequence | Map


class Entry(NamedTuple):
    location: Location
    """Of the key."""
    node: Node


def read(text: str, file: Path, env: Mapping[str, str], problems: list[Problem]) -> Map | None:
    """The tree of one file, or None where there is none; what is wrong with it is added to ``problems``."""
    composer = _Composer(file, env, problems)
    try:
        for event in yaml.parse(protect(text), Loader=LOADER):
            composer.take(event)
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        # A bracket that is never closed is an error at the end of the file; its beginning is the better line to report.
        ends = error.problem_mark is None or error.problem_mark.line >= len(text.splitlines())
        mark = (error.context_mark if ends else None) or error.problem_mark
        line = min(mark.line + 1 if mark else 1, len(text.splitlines()))
        problems.append(Problem(file, line, f"not valid YAML: {_explain(error, text, line)}", "yaml"))
        return None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problems.append(Problem(file, line, f"not valid YAML: {error.reason}; remove that character", "yaml"))
        return None
    except (yaml.YAMLError, RecursionError) as error:
        problems.append(Problem(file, 1, f"not valid YAML: {error}", "yaml"))
        return None
    return composer.root


def data(node: Node) -> Any:
    """``node`` as plain Python values."""
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return [data(item) for item in node.items]
        case Map():
            return {key: data(entry.node) for key, entry in node.entries.items()}


def scalars(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Location, Scalar]]:
    """Every scalar below ``node`` with its path and the line to look at."""
    match node:
        case Scalar():
            yield path, node.location, node
        case Sequence():
            for index, item in enumerate(node.items):
                yield from scalars(item, (*path, index))
        case Map():
            for key, entry in node.entries.items():
                if isinstance(entry.node, Scalar):
                    yield (*path, key), entry.location, entry.node
                else:
                    yield from scalars(entry.node, (*path, key))


class _Stop(Exception):
    """The rest of the file cannot be understood."""


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet."""

    node: Sequence | Map
    anchor: str | None
    key: tuple[Location, str] | None = None
    merges: list[Node] = field(default_factory=list)


class _Composer:
    def __init__(self, file: Path, env: Mapping[str, str], problems: list[Problem]) -> None:
        self.root: Map | None = None
        self._file = file
        self._env = env
        self._problems = problems
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._documents = 0
        self._written = 0
        """Values in the file, aliases not followed."""

    def take(self, event: yaml.Event) -> None:
        location = Location(self._file, event.start_mark.line + 1 if event.start_mark else 1)
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    self._stop(location, "a second document ('---') begins here; one file holds one document")
            case yaml.ScalarEvent():
                self._anchored(event.anchor, self._scalar(event, location))
            case yaml.AliasEvent():
                self._alias(event.anchor, location)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self._tagless(event.tag, location)
                if len(self._open) >= MAX_DEPTH:
                    self._too_deep(location)
                is_map = isinstance(event, yaml.MappingStartEvent)
                self._open.append(_Open(Map(location) if is_map else Sequence(location), event.anchor))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self._open.pop()
                if isinstance(done.node, Map):
                    self._merge(done.node, done.merges)
                self._anchored(done.anchor, done.node)

    def _scalar(self, event: yaml.ScalarEvent, location: Location) -> Scalar:
        if event.tag not in _TEXT_TAGS:
            self._tagless(event.tag, location)
        written = restore(event.value)
        try:
            result = substitute(written, self._env)
        except ValueError as error:
            self._problem(location, str(error))
            return Scalar(location, written, written, broken=True)
        text = result.text
        plain = event.implicit[0] and event.tag is None
        # An environment value is never null, only nothing: a key that reads "null" is a key.
        nothing = not text if result.used else text in _NULL
        value = (None if nothing else typed(text)) if plain else text
        return Scalar(location, text, value, result.unset, result.empty, result.used)

    def _alias(self, anchor: str | None, location: Location) -> None:
        if any(collection.anchor == anchor for collection in self._open):
            self._stop(location, f"'*{anchor}' is inside the value that it names")
        if anchor is None or anchor not in self._anchors:
            self._stop(
                location, f"'*{anchor}' names no anchor; write '&{anchor}' before the value that is meant"
            )
        self._add(self._anchors[anchor], location)

    def _anchored(self, anchor: str | None, node: Node) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        self._add(node, node.location)

    def _add(self, node: Node, location: Location) -> None:
        if not self._open:
            if isinstance(node, Map):
                self.root = node
            elif not (isinstance(node, Scalar) and node.value is None):
                self._stop(location, "a policy file is a mapping: lines of the form 'key: value'")
            return
        parent = self._open[-1]
        if isinstance(parent.node, Sequence):
            parent.node.items.append(node)
        elif parent.key is None:
            parent.key = location, self._key(node, location)
            return
        else:
            key_location, key = parent.key
            parent.key = None
            if key == "<<":
                parent.merges.append(node)
            elif first := parent.node.entries.get(key):
                message = f"is written twice in one mapping; the first is at line {first.location.line}"
                self._problem(key_location, message, key)
            else:
                parent.node.entries[key] = Entry(key_location, node)
        parent.node.depth = max(parent.node.depth, node.depth + 1)
        if parent.node.depth > MAX_DEPTH:
            self._too_deep(location)
        parent.node.size += node.size
        self._written += 1
        if parent.node.size > MAX_VALUES + self._written:
            self._stop(location, f"aliases stand for more than {MAX_VALUES} values")

    def _key(self, node: Node, location: Location) -> str:
        # Keys are names, so they are taken as written: `on`, `no` and `1.10` too.
        if isinstance(node, Scalar) and (missing := (*node.unset, *node.empty)):
            self._problem(location, f"the environment variable {missing[0]}, used in a key, is not set")
            return f"${{{missing[0]}}}"
        if not isinstance(node, Scalar) or node.value is None:
            self._stop(location, "a key must be plain text")
        return node.text

    def _merge(self, into: Map, merges: list[Node]) -> None:
        """YAML's merge key: entries of the named mappings, except those that stand here; earlier ones win."""
        for node in merges:
            for source in node.items if isinstance(node, Sequence) else [node]:
                if not isinstance(source, Map):
                    self._problem(node.location, "takes a mapping or a list of mappings", "<<")
                    continue
                for key, entry in source.entries.items():
                    into.entries.setdefault(key, entry)

    def _tagless(self, tag: str | None, location: Location) -> None:
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            self._problem(location, f"the tag '{shown}' is not supported; remove it")

    def _too_deep(self, location: Location) -> NoReturn:
        self._stop(location, f"nested more than {MAX_DEPTH} levels deep")

    def _problem(self, location: Location, message: str, key: str | None = None) -> None:
        path = self._path()
        self._problems.append(Problem.at(location, message, path if key is None else (*path, key), "yaml"))

    def _path(self) -> KeyPath:
        path: list[str | int] = []
        for collection in self._open:
            if isinstance(collection.node, Sequence):
                path.append(len(collection.node.items))
            elif collection.key is not None:
                path.append(collection.key[1])
        return tuple(path)

    def _stop(self, location: Location, message: str) -> NoReturn:
        self._problem(location, message)
        raise _Stop


def typed(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _explain(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    message = ", ".join(part for part in (error.context, error.problem) if part)
    lines = text.splitlines()
    written = lines[line - 1] if line <= len(lines) else ""
    if "cannot start any token" in message and "\t" in written:
        return f"{message}; indent with spaces, not tabs"
    if "cannot start any token" in message or "mapping values are not allowed" in message:
        return f"{message}; put text with special characters in quotes"
    if error.context_mark is not None and error.context_mark.line + 1 != line:
        return f"{message}; it began at line {error.context_mark.line + 1}"
    return message
