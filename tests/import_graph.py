"""The imports of a source tree, read off its files: as arrows between files, and between the rooms of each folder."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "engine", "kernels")
BY_NAME = ("import_module", "__import__")

Kind = Literal["eager", "lazy", "typing"]
"""Runs when the file is imported; runs in a function; stands under `TYPE_CHECKING`."""
KINDS: tuple[Kind, ...] = get_args(Kind)

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One import; `importer` and `target` are dotted."""

    importer: str
    target: str
    line: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.target}"


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def modules_under(root: Path) -> dict[str, Path]:
    """Every module of the three packages by dotted name; a package by its own name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, modules: dict[str, Path]) -> list[Import]:
    """All imports of one file, those in functions, under TYPE_CHECKING and by literal name included."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[Import] = []

    def note(target: str, node: ast.AST, kind: Kind) -> None:
        found.append(Import(module, target, getattr(node, "lineno", 0), kind))

    def visit(node: ast.AST, kind: Kind) -> None:
        if isinstance(node, ast.Import):
            for name in node.names:
                note(name.name, node, kind)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for name in node.names:
                inner = f"{base}.{name.name}"
                note(inner if inner in modules else base, node, kind)
        elif isinstance(node, ast.Call) and _last_name(node.func) in BY_NAME and node.args:
            note(ast.unparse(node.args[0]).strip("'"), node, kind)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and kind == "eager":
            kind = "lazy"
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                visit(statement, "typing")
            for statement in node.orelse:
                visit(statement, kind)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, kind)

    visit(ast.parse(path.read_text(), str(path)), "eager")
    return found


def _last_name(node: ast.expr) -> str | None:
    """``c`` of ``a.b.c``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


@cache
def all_imports(root: Path) -> tuple[Import, ...]:
    """Read once: a tree must not be changed after this."""
    modules = modules_under(root)
    return tuple(found for module, path in modules.items() for found in imports_of(module, path, modules))


def file_graph(root: Path, kinds: Collection[Kind] = KINDS) -> Graph:
    """Which module imports which."""
    modules = modules_under(root)
    graph: Graph = {module: set() for module in modules}
    for found in all_imports(root):
        if found.kind not in kinds:
            continue
        # Importing a.b.c runs a and a.b first, unless they are what is being imported already.
        parts = found.target.split(".")
        for end in range(1, len(parts) + 1):
            target = ".".join(parts[:end])
            is_own_parent = end < len(parts) and within(found.importer, target)
            if target in modules and not is_own_parent and target != found.importer:
                graph[found.importer].add(target)
    return graph


def room_graph(files: Graph, folder: str) -> Graph:
    """Which of a folder's rooms, files and subfolders alike, imports which."""
    graph: Graph = {}
    for importer, targets in files.items():
        for target in targets:
            if within(importer, folder) and within(target, folder) and folder not in (importer, target):
                here, there = (name.removeprefix(f"{folder}.").split(".")[0] for name in (importer, target))
                graph.setdefault(here, set()).update({there} - {here})
    return graph


def folders(root: Path) -> list[str]:
    return [module for module, path in modules_under(root).items() if path.name == "__init__.py"]


def circles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that all reach each other."""
    reach = {node: _reached(graph, node) for node in graph}
    groups = {
        tuple(sorted(other for other in reach[node] if node in reach.get(other, ())))
        for node in graph
        if node in reach[node]
    }
    return [list(group) for group in sorted(groups)]


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    left = list(graph[start])
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += graph.get(node, ())
    return found


def grow(root: Path, files: dict[str, str]) -> Path:
    """A small source tree with the given files; the packages above them get an empty __init__.py."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in path.relative_to(root).parents:
            if parent != Path() and not (root / parent / "__init__.py").exists():
                (root / parent / "__init__.py").touch()
    return root
