"""A policy folder's files, joined into one tree that knows where each value was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.policy import yaml_tree
from gateway.policy.problems import KeyPath, Place, PolicyError, Problem
from gateway.policy.yaml_tree import Entry, Map, Node, Scalar, Sequence

MAX_BYTES = 16 * 1024 * 1024
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a policy folder as one tree, not yet checked against the schema."""

    root: Map
    sources: tuple[Path, ...]
    problems: tuple[Problem, ...]
    complete: bool
    """Every file could be read to its end."""


def read_folder(directory: Path, env: Mapping[str, str]) -> Folder:
    """The joined tree of a folder's files. Raises ``PolicyError`` where there is nothing to read."""
    problems: list[Problem] = []
    trees: list[Map] = []
    sources = policy_files(directory)
    complete = True
    for file in sources:
        before = len(problems)
        text = _text(file, problems)
        tree = yaml_tree.read(text, file, env, problems) if text is not None else None
        if tree is not None:
            trees.append(tree)
        elif len(problems) > before:
            complete = False
    if not trees and complete:
        raise PolicyError([Problem(sources[0], 1, "holds nothing; begin with 'version: 1'")])
    root = _joined(trees, Place(sources[0], 1), problems)
    return Folder(root, sources, tuple(problems), complete)


def policy_files(directory: Path) -> tuple[Path, ...]:
    """The folder's policy files, in the order of their names. Raises ``PolicyError`` if there are none."""
    try:
        names = sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(_SUFFIXES))
    except FileNotFoundError:
        raise _nothing(
            directory,
            "no such folder; give the folder that holds your policy files, or make one with 'tollgate init'",
        ) from None
    except NotADirectoryError:
        raise _nothing(directory, f"is a file; give the folder that holds it: {directory.parent}") from None
    except (OSError, ValueError) as error:
        raise _nothing(directory, f"cannot be read: {_why(error)}") from None
    # Names with a leading dot are the half-written files of editors and of `tollgate keys`.
    files = tuple(directory / name for name in names if not name.startswith("."))
    if not files:
        raise _nothing(directory, "holds no *.yaml file; write one that begins with 'version: 1'")
    return files


def place_of(root: Map, path: KeyPath) -> Place:
    """The line of a key; of the nearest one around it where the key itself is missing."""
    place = root.place
    node: Node = root
    for part in path:
        if isinstance(node, Map) and isinstance(part, str) and part in node.entries:
            place, node = node.entries[part]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            place = node.place
        else:
            break
    return place


def find(root: Map, path: KeyPath) -> Node | None:
    """What stands at a key path."""
    node: Node | None = root
    for part in path:
        if isinstance(node, Map) and isinstance(part, str):
            node = node.entries[part].node if part in node.entries else None
        elif isinstance(node, Sequence) and isinstance(part, int):
            node = node.items[part] if part < len(node.items) else None
        else:
            return None
    return node


def _text(file: Path, problems: list[Problem]) -> str | None:
    try:
        if file.stat().st_size > MAX_BYTES:
            problems.append(Problem(file, 1, f"is larger than {MAX_BYTES} bytes"))
            return None
        content = file.read_bytes()
    except IsADirectoryError:
        message = "is a folder where a file should be (Docker makes one if the mounted file does not exist)"
        problems.append(Problem(file, 1, message))
        return None
    except OSError as error:
        problems.append(Problem(file, 1, f"cannot be read: {_why(error)}"))
        return None
    if not content:
        problems.append(Problem(file, 1, "is empty; write something or remove the file"))
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problems.append(
            Problem(file, line, f"is not UTF-8 (byte 0x{content[error.start]:02x}); save it as UTF-8")
        )
        return None


def _joined(trees: list[Map], start: Place, problems: list[Problem]) -> Map:
    root = Map(trees[0].place if trees else start)
    for tree in trees:
        for key, entry in tree.entries.items():
            if key not in root.entries:
                root.entries[key] = Entry(entry.place, _copy(entry.node))
                continue
            match root.entries[key].node, entry.node:
                case Map() as known, Map() as more:
                    for name, inner in more.entries.items():
                        if (first := known.entries.setdefault(name, inner)) is not inner:
                            problems.append(_twice(inner.place, first.place, (key, name)))
                case Sequence() as known, Sequence() as more:
                    known.items.extend(more.items)
                case Scalar() as known, Scalar() as more if key == "version" and known.text == more.text:
                    pass  # each file may begin with it
                case _:
                    problems.append(_twice(entry.place, root.entries[key].place, (key,)))
    return root


def _copy(node: Node) -> Node:
    """A top-level collection that can be added to, although aliases may refer to the original."""
    match node:
        case Map():
            return Map(node.place, dict(node.entries))
        case Sequence():
            return Sequence(node.place, list(node.items))
        case Scalar():
            return node


def _twice(place: Place, first: Place, path: KeyPath) -> Problem:
    return Problem.at(place, f"is given twice; the first is at {first}", path)


def _nothing(directory: Path, message: str) -> PolicyError:
    return PolicyError([Problem(directory, 1, message)])


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
