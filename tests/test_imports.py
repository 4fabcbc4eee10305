"""Imports go one way, and never in a circle: read off the source, and each rule shown able to fail."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_graph import (
    KINDS,
    ROOT,
    Kind,
    all_imports,
    circles,
    file_graph,
    grow,
    imports_of,
    modules_under,
    within,
)

TORCH_FREE = ("engine.core", "engine.client", "engine.messages", "engine.simulation", "engine.fleet")
HEAVY = (
    *("torch", "triton", "numpy", "transformers", "spacy"),
    *("presidio_analyzer", "presidio_anonymizer", "sentence_transformers", "faiss"),
)
SIDECAR = ("gateway.sidecar.worker", "gateway.sidecar.models", "gateway.sidecar.semantic")
"""The process that runs the small models, and what only it imports."""
GUARDS, GUARDS_FACE = "gateway.guards", "gateway.guards.evaluation"
"""What ``training`` and ``benchmarks`` know of the guards is their public face."""
LAB = "gateway.lab"
"""What commands ask of a gateway or a policy: loaded where one of them runs, and never to serve."""
EXPLAINING = "gateway.admin.api.explain"
"""A question of an operator's to a running gateway: the first one loads what answers it."""
OWN_PROCESSES = ("gateway.scaler", "gateway.picker", "gateway.message_classes")
"""Of commands with a process of their own, which speak gRPC."""
GRPC_COMMANDS = ("gateway.cli.scaler", "gateway.cli.epp", "gateway.cli.grpc_options")
OTEL = ("opentelemetry", "grpc")
EXPORTERS = ("gateway.observe.telemetry.otlp", "engine.server.otlp")
"""Imported where telemetry is sent, and only there."""


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
        if within(target, LAB) and not (
            within(importer, LAB) or (within(importer, "gateway.cli", EXPLAINING) and found.kind != "eager")
        ):
            yield f"{found}: serving loads nothing of the lab"
        if within(target, *OWN_PROCESSES) and not within(importer, *OWN_PROCESSES) and found.kind == "eager":
            yield f"{found}: serving loads nothing of what speaks gRPC in a process of its own"
        if not within(importer, *EXPORTERS, *OWN_PROCESSES, *GRPC_COMMANDS) and (
            within(target, *OTEL) or (within(target, *EXPORTERS) and found.kind == "eager")
        ):
            yield f"{found}: only the exporters load OpenTelemetry, where it is asked for"


def past_the_face(root: Path) -> Iterator[str]:
    """One line for every import of the guards' inner names by those who train or measure them."""
    modules = modules_under(root)
    for folder in ("training", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            importer = ".".join(path.relative_to(root).with_suffix("").parts)
            for found in imports_of(importer, path, modules):
                if within(found.target, GUARDS) and not within(found.target, GUARDS_FACE):
                    yield f"{found}: write it into {GUARDS_FACE}"


def loaded_by(modules: list[str], root: Path) -> set[str]:
    """The top-level names in sys.modules after a fresh interpreter imported `modules`; `opentelemetry.x` is `x`."""
    script = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    script += "print(*{name.removeprefix('opentelemetry.').partition('.')[0] for name in sys.modules})"
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
        if within(m, *packages)
        and not m.endswith("__main__")
        and not within(m, *SIDECAR, *EXPORTERS, *OWN_PROCESSES)
    ]


def test_every_import_goes_the_right_way() -> None:
    assert list(violations(ROOT)) == []


def test_training_and_benchmarks_know_the_guards_by_their_public_face() -> None:
    assert list(past_the_face(ROOT)) == []


@pytest.mark.parametrize("kinds", [KINDS[: last + 1] for last in range(len(KINDS))], ids="-".join)
def test_no_files_import_each_other_in_a_circle(kinds: tuple[Kind, ...]) -> None:
    assert circles(file_graph(ROOT, kinds)) == []


def test_the_torch_free_part_of_the_engine_loads_no_torch() -> None:
    assert loaded_by(importable(ROOT, *TORCH_FREE), ROOT).isdisjoint({"torch", "triton", "gateway"})


def test_the_gateway_loads_neither_engine_nor_torch() -> None:
    loaded = loaded_by(importable(ROOT, "gateway"), ROOT)
    assert loaded.isdisjoint(
        {"engine", "kernels", *HEAVY, "grpc", "exporter"}
    )  # redis loads the SDK where it is


WRONG = {
    "gateway-engine": {"gateway/launcher.py": "import engine.config", "engine/config.py": ""},
    "gateway-kernels": {"gateway/a.py": "from kernels import rope", "kernels/rope.py": ""},
    "gateway-torch": {"gateway/guards/scanners/pii.py": "def load():\n    import torch"},
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
    "sidecar-only": {"gateway/guards/scanners/pii.py": "from presidio_analyzer import AnalyzerEngine"},
    "lab": {
        "gateway/admin/site.py": "def f():\n    from gateway.lab import bench",
        "gateway/lab/bench.py": "",
    },
    "lab-command": {"gateway/cli/bench.py": "from gateway.lab import bench", "gateway/lab/bench.py": ""},
    "otel": {"gateway/stages/trace.py": "from opentelemetry import trace"},
    "otel-engine": {"engine/server/app.py": "from opentelemetry import trace"},
    "exporter": {
        "engine/server/serve.py": "from engine.server import otlp",
        "engine/server/otlp.py": "import opentelemetry",
    },
    "sidecar-client": {
        "gateway/sidecar/client.py": "from gateway.sidecar.models import heads",
        "gateway/sidecar/models/heads.py": "import numpy",
    },
}


@pytest.mark.parametrize("files", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_import_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    (found,) = violations(grow(tmp_path, files))
    assert next(iter(files)).removesuffix(".py").replace("/", ".") in found


@pytest.mark.parametrize(
    "text",
    [
        "from gateway.guards.scanners.pii import Pii",
        "from gateway.guards import scanners",
        "import gateway.guards.scanners.pii",
        "def f():\n    from gateway.guards.requests import mask",
    ],
)
def test_an_import_past_the_guards_public_face_is_found(tmp_path: Path, text: str) -> None:
    grow(
        tmp_path,
        {
            "gateway/guards/scanners/pii.py": "",
            "gateway/guards/evaluation.py": "",
            "training/pii.py": text,
            "benchmarks/pii.py": "from gateway.guards import evaluation\nfrom gateway.guards.evaluation import Pii",
        },
    )
    (found,) = past_the_face(tmp_path)
    assert found.startswith("training.pii, line ")


def test_right_imports_are_let_be(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {
            "engine/worker/runner.py": "import torch\nfrom kernels import rope\nfrom engine.core import plan",
            "engine/core/plan.py": "import heapq",
            "kernels/rope.py": "import torch, triton",
            "gateway/sidecar/worker.py": "import torch\nfrom gateway.sidecar.models import index",
            "gateway/sidecar/semantic/index.py": "import faiss, sentence_transformers",
            "gateway/backends/openai.py": "from gateway.backends.clock import Clock\nclass OpenAIBackend: ...",
            "gateway/backends/clock.py": "class Clock: ...",
            "gateway/stages/cache.py": "from gateway.caching import exact",
            "gateway/caching/exact.py": "",
            "gateway/cli/bench.py": "def run():\n    from gateway.lab import bench",
            "gateway/lab/bench.py": "from gateway.lab import report",
            "gateway/lab/report.py": "",
            "gateway/torchlight.py": "import engineering",
        },
    )
    assert list(violations(tmp_path)) == []


def test_a_torch_reached_through_another_module_is_seen(tmp_path: Path) -> None:
    grow(
        tmp_path,
        {"engine/core/plan.py": "import engine.tensors", "engine/tensors.py": "import torch", "torch.py": ""},
    )
    assert "torch" in loaded_by(importable(tmp_path, *TORCH_FREE), tmp_path)


LATE = "def f():\n    import gateway.a"
TYPING = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gateway.a"


@pytest.mark.parametrize(
    ("there", "kind"), [("import gateway.a", "eager"), (LATE, "lazy"), (TYPING, "typing")], ids=KINDS
)
def test_a_circle_is_found_by_the_kinds_of_its_imports(tmp_path: Path, there: str, kind: Kind) -> None:
    grow(tmp_path, {"gateway/a.py": "from gateway import b", "gateway/b.py": there})
    for last in range(len(KINDS)):
        found = circles(file_graph(tmp_path, KINDS[: last + 1]))
        assert found == ([["gateway.a", "gateway.b"]] if kind in KINDS[: last + 1] else [])


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        (
            {
                "gateway/a.py": "from .b import x",
                "gateway/b.py": "from .c import x",
                "gateway/c.py": "from . import a",
                "gateway/d.py": "from . import a",
            },
            ["gateway.a", "gateway.b", "gateway.c"],
        ),
        (
            {"gateway/__init__.py": "from gateway.a import x", "gateway/a.py": "from gateway import version"},
            ["gateway", "gateway.a"],
        ),
        (
            {
                "gateway/wire/__init__.py": "from gateway import app",
                "gateway/app.py": "from gateway.wire import sse",
            },
            ["gateway.app", "gateway.wire"],
        ),
        (
            {"engine/a.py": "__import__('engine.b')", "engine/b.py": "import engine.a"},
            ["engine.a", "engine.b"],
        ),
    ],
    ids=["three", "own-package", "through-a-package", "by-name"],
)
def test_a_circle_of_files_is_found(tmp_path: Path, files: dict[str, str], circle: list[str]) -> None:
    assert circles(file_graph(grow(tmp_path, files))) == [circle]
