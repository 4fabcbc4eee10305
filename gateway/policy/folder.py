"""A policy folder's files, joined into one tree that knows the file and line of each value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.policy import yaml_tree
from gateway.policy.files import PROMPT, PolicyFile, is_prompt, is_table, read_files
from gateway.policy.key_table import KeyTable, KeyTableReader
from gateway.policy.problems import KeyPath, Location, PolicyError, Problem
from gateway.policy.yaml_tree import Entry, Map, Node, Scalar, Sequence


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a policy folder as one tree, not yet checked against the schema."""

    root: Map
    sources: tuple[PolicyFile, ...]
    problems: tuple[Problem, ...]
    complete: bool
    """Every file could be read to its end."""
    tables: tuple[KeyTable, ...] = ()
    """Keys that are in no YAML file, and so not in ``root``."""


def read_folder(
    directory: Path,
    env: Mapping[str, str],
    *,
    also: Iterable[Path] = (),
    tables: KeyTableReader | None = None,
) -> Folder:
    """The joined tree of a folder's files. Raises ``PolicyError`` where there is nothing to read."""
    return joined(read_files(directory, tuple(also)), env, tables)


def joined(
    files: Iterable[PolicyFile], env: Mapping[str, str], tables: KeyTableReader | None = None
) -> Folder:
    """The tree of files that have been read. Raises ``PolicyError`` where they hold nothing.

    ``tables`` remembers what it read before.
    """
    problems: list[Problem] = []
    trees: list[Map] = []
    sources = tuple(files)
    reader, found = tables or KeyTableReader(), list[KeyTable]()
    complete = True
    for file in sources:
        before = len(problems)
        if is_table(file.path):
            if file.content is None or file.problem:
                problems.append(Problem(file.path, 1, file.problem))
            else:
                found.append(reader.read(file, problems))
            complete = complete and len(problems) == before
            continue
        text = _text(file, problems)
        tree = None
        if text is not None:
            prompt = is_prompt(file.path)
            tree = _prompt(file.path, text) if prompt else yaml_tree.read(text, file.path, env, problems)
        if tree is not None:
            trees.append(tree)
        elif len(problems) > before:
            complete = False
    if not trees and complete:
        raise PolicyError([Problem(sources[0].path, 1, "holds nothing; begin with 'version: 1'")])
    root = _joined(trees, Location(sources[0].path, 1), problems)
    return Folder(root, sources, tuple(problems), complete, tuple(found))


def location_of(root: Map, path: KeyPath) -> Location:
    """The line of a key; of the nearest one around it where the key itself is missing."""
    location = root.location
    node: Node = root
    for part in path:
        if isinstance(node, Map) and isinstance(part, str) and part in node.entries:
            location, node = node.entries[part]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            location = node.location
        else:
            break
    return location


def find(root: Map, path: KeyPath) -> Node | None:
    """The value at a key path."""
    node: Node | None = root
    for part in path:
        if isinstance(node, Map) and isinstance(part, str):
            node = node.entries[part].node if part in node.entries else None
        elif isinstance(node, Sequence) and isinstance(part, int):
            node = node.items[part] if part < len(node.items) else None
        else:
            return None
    return node


def _prompt(file: Path, text: str) -> Map:
    """As if it were written under ``prompts``. Nothing in it is a reference to a variable."""
    at, name = Location(file, 1), file.name.removesuffix(PROMPT)
    prompt = text.replace("\r\n", "\n").strip("\n")
    inner = Map(at, {name: Entry(at, Scalar(at, prompt, prompt))})
    return Map(at, {"prompts": Entry(at, inner)})


def _text(file: PolicyFile, problems: list[Problem]) -> str | None:
    if file.content is None or file.problem:
        problems.append(Problem(file.path, 1, file.problem))
        return None
    try:
        return file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = file.content[: error.start].count(b"\n") + 1
        problems.append(
            Problem(
                file.path, line, f"is not UTF-8 (byte 0x{file.content[error.start]:02x}); save it as UTF-8"
            )
        )
        return None


def _joined(trees: list[Map], start: Location, problems: list[Problem]) -> Map:
    root = Map(trees[0].location if trees else start)
    for tree in trees:
        for key, entry in tree.entries.items():
            if key not in root.entries:
                root.entries[key] = Entry(entry.location, _copy(entry.node))
                continue
            match root.entries[key].node, entry.node:
                case Map() as known, Map() as more:
                    for name, inner in more.entries.items():
                        if (first := known.entries.setdefault(name, inner)) is not inner:
                            problems.append(_twice(inner.location, first.location, (key, name)))
                case Sequence() as known, Sequence() as more:
                    known.items.extend(more.items)
                case Scalar() as known, Scalar() as more if key == "version" and known.text == more.text:
                    pass  # each file may begin with it
                case _:
                    problems.append(_twice(entry.location, root.entries[key].location, (key,)))
    return root


def _copy(node: Node) -> Node:
    """A top-level collection that can be added to, although aliases may refer to the original."""
    match node:
        case Map():
            return Map(node.location, dict(node.entries))
        case Sequence():
            return Sequence(node.location, list(node.items))
        case Scalar():
            return node


def _twice(location: Location, first: Location, path: KeyPath) -> Problem:
    return Problem.at(location, f"is given twice; the first is at {first}", path, "given-twice")
