"""Imports go one way: the rules of the README's tree, read off the source, and each rule shown able to fail."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "engine", "kernels")
TORCH_FREE = ("engine.core", "engine.client", "engine.messages")
HEAVY = (
    *("torch", "triton", "numpy", "transformers", "spacy"),
    *("presidio_analyzer", "presidio_anonymizer", "sentence_transformers", "faiss"),
)
BY_NAME = ("importlib.import_module", "__import__")
SIDECAR = ("gateway.sidecar.worker", "gateway.sidecar.models", "gateway.sidecar.semantic")
"""The process that runs the small models, and what only it imports."""


@dataclass(frozen=True)
class Import:
    """One import: `importer` and `target` are dotted; `eager` ones run when `importer` itself is imported."""

    importer: str
    target: str
    line: int
    eager: bool

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

    def note(target: str, node: ast.AST, eager: bool) -> None:
        found.append(Import(module, target, getattr(node, "lineno", 0), eager))

    def visit(node: ast.AST, eager: bool) -> None:
        if isinstance(node, ast.Import):
            for name in node.names:
                note(name.name, node, eager)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for name in node.names:
                inner = f"{base}.{name.name}"
                note(inner if inner in modules else base, node, eager)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME and node.args:
            note(ast.unparse(node.args[0]).strip("'"), node, eager)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            eager = False
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.body:
                visit(statement, False)
            for statement in node.orelse:
                visit(statement, eager)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, eager)

    visit(ast.parse(path.read_text(), str(path)), True)
    return found


def all_imports(root: Path) -> list[Import]:
    modules = modules_under(root)
    return [found for module, path in modules.items() for found in imports_of(module, path, modules)]


def defines_backend(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    return any(isinstance(node, ast.ClassDef) and node.name.endswith("Backend") for node in tree.body)


def violations(root: Path) -> Iterator[str]:
    """One line for every import that goes the wrong way."""
    modules = modules_under(root)
    backends = [m for m, path in modules.items() if within(m, "gateway.backends") and defines_backend(path)]
    for found in all_imports(root):
        importer, target = found.importer, found.target
        if within(importer, "gateway") and within(target, "engine", "kernels"):
            yield f"{found}: the gateway knows no engine"
        if within(importer, "engine") and within(target, "gateway"):
            yield f"{found}: the engine knows no gateway"
        if within(importer, "kernels") and within(target, "engine", "gateway"):
            yield f"{found}: kernels know nothing above them"
        if within(importer, *TORCH_FREE) and within(target, "torch", "triton"):
            yield f"{found}: this part of the engine runs without torch"
        if (
            importer.startswith("gateway.stages.")
            and target.startswith("gateway.stages.")
            and importer != target
        ):
            yield f"{found}: stages never import each other"
        if importer.startswith("gateway.backends.") and target in backends and importer != target:
            yield f"{found}: backends never import each other"
        if (
            within(importer, "gateway")
            and not within(importer, *SIDECAR)
            and within(target, *HEAVY, *SIDECAR)
        ):
            yield f"{found}: only the sidecar's own process loads these"


def cycle(root: Path) -> list[str]:
    """One import cycle as the modules along it, or nothing. Counts only what runs at import time."""
    modules = modules_under(root)
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for found in all_imports(root):
        if not found.eager:
            continue
        # Importing a.b.c runs a and a.b first, unless they are what is being imported already.
        parts = found.target.split(".")
        for end in range(1, len(parts) + 1):
            target = ".".join(parts[:end])
            is_own_parent = end < len(parts) and within(found.importer, target)
            if target in modules and not is_own_parent:
                graph[found.importer].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def loaded_by(modules: list[str], root: Path) -> set[str]:
    """The top-level names in sys.modules after a fresh interpreter imported `modules`."""
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    script += "print(*{name.partition('.')[0] for name in sys.modules})"
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", script, *modules]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def importable(root: Path, *packages: str) -> list[str]:
    """Modules under `packages` that can be imported for what they define: commands and the sidecar's process not."""
    return [
        m
        for m in modules_under(root)
        if within(m, *packages) and not m.endswith("__main__") and not within(m, *SIDECAR)
    ]


def test_every_import_goes_the_right_way() -> None:
    assert list(violations(ROOT)) == []


def test_there_is_no_import_cycle() -> None:
    assert cycle(ROOT) == []


def test_the_torch_free_part_of_the_engine_loads_no_torch() -> None:
    assert loaded_by(importable(ROOT, *TORCH_FREE), ROOT).isdisjoint({"torch", "triton", "gateway"})


def test_the_gateway_loads_neither_engine_nor_torch() -> None:
    loaded = loaded_by(importable(ROOT, "gateway"), ROOT)
    assert loaded.isdisjoint({"engine", "kernels", *HEAVY})


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


WRONG = {
    "gateway-engine": {"gateway/launcher.py": "import engine.config", "engine/config.py": ""},
    "gateway-kernels": {"gateway/a.py": "from kernels import rope", "kernels/rope.py": ""},
    "gateway-torch": {"gateway/guards/pii.py": "def load():\n    import torch"},
    "gateway-torch-typing": {
        "gateway/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"
    },
    "gateway-torch-by-name": {"gateway/a.py": "import importlib\nt = importlib.import_module('torch')"},
    "engine-gateway": {"engine/server/app.py": "from gateway.wire import sse", "gateway/wire/sse.py": ""},
    "kernels-engine": {"kernels/rope.py": "from engine import config", "engine/config.py": ""},
    "kernels-gateway": {"kernels/rope.py": "from gateway import types", "gateway/types.py": ""},
    "core-torch": {"engine/core/scheduler.py": "import torch.nn"},
    "client-torch": {"engine/client.py": "from torch import Tensor"},
    "messages-triton": {"engine/messages.py": "import triton"},
    "stages": {"gateway/stages/quota.py": "from gateway.stages import cache", "gateway/stages/cache.py": ""},
    "stages-relative": {"gateway/stages/quota.py": "from .cache import get", "gateway/stages/cache.py": ""},
    "backends": {
        "gateway/backends/anthropic.py": "from gateway.backends.openai import OpenAIBackend",
        "gateway/backends/openai.py": "class OpenAIBackend: ...",
    },
    "sidecar-only": {"gateway/guards/pii.py": "from presidio_analyzer import AnalyzerEngine"},
    "sidecar-client": {
        "gateway/sidecar/client.py": "from gateway.sidecar.models import heads",
        "gateway/sidecar/models/heads.py": "import numpy",
    },
}


@pytest.mark.parametrize("files", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_import_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    (found,) = violations(grow(tmp_path, files))
    assert next(iter(files)).removesuffix(".py").replace("/", ".") in found


def test_right_imports_are_let_be(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            "engine/worker/runner.py": "import torch\nfrom kernels import rope\nfrom engine.core import plan",
            "engine/core/plan.py": "import heapq",
            "kernels/rope.py": "import torch, triton",
            "gateway/sidecar/worker.py": "import torch\nfrom gateway.sidecar.models import index",
            "gateway/sidecar/models/index.py": "import faiss, sentence_transformers",
            "gateway/backends/openai.py": "from gateway.backends.clock import Clock\nclass OpenAIBackend: ...",
            "gateway/backends/clock.py": "class Clock: ...",
            "gateway/stages/cache.py": "from gateway.caching import exact",
            "gateway/caching/exact.py": "",
            "gateway/torchlight.py": "import engineering",
        },
    )
    assert list(violations(tmp_path)) == []


@pytest.mark.parametrize(
    "files",
    [
        {"gateway/a.py": "from gateway import b", "gateway/b.py": "import gateway.a"},
        {
            "gateway/a.py": "from .b import x",
            "gateway/b.py": "from .c import x",
            "gateway/c.py": "from . import a",
        },
        {"gateway/__init__.py": "from gateway.a import x", "gateway/a.py": "from gateway import version"},
        {
            "gateway/wire/__init__.py": "from gateway import app",
            "gateway/app.py": "from gateway.wire import sse",
        },
    ],
    ids=["two", "three", "own-package", "through-a-package"],
)
def test_a_cycle_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    assert len(cycle(grow(tmp_path, files))) >= 3


def test_what_does_not_run_at_import_time_closes_no_cycle(tmp_path: Path) -> None:
    late = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gateway.a\ndef f():\n    import gateway.a"
    grow(
        tmp_path,
        {"gateway/a.py": "import gateway.b", "gateway/b.py": late, "gateway/__init__.py": "import gateway.a"},
    )
    assert cycle(tmp_path) == []


def test_a_torch_reached_through_another_module_is_seen(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {"engine/core/plan.py": "import engine.tensors", "engine/tensors.py": "import torch", "torch.py": ""},
    )
    assert "torch" in loaded_by(importable(tmp_path, *TORCH_FREE), tmp_path)
