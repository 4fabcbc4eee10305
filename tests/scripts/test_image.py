"""scripts/image.py: what an image needs, and what is taken out of it."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image", ROOT / "scripts" / "image.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load()


def test_what_no_server_runs_is_taken_out_and_nothing_else(tmp_path: Path) -> None:
    dead = [
        *("torch/test/test_nn.py", "torch/include/ATen/ATen.h", "torch/bin/protoc", "torch/bin/test_jit"),
        *(
            "torch/lib/libjitbackend_test.so",
            "numpy/_core/tests/test_a.py",
            "numpy/__pycache__/a.pyc",
            "a/b/c.a",
        ),
    ]
    alive = [
        *(
            "torch/__init__.py",
            "torch/testing/__init__.py",
            "torch/bin/torch_shm_manager",
            "torch/lib/libshm.so",
        ),
        *("sympy/testing/runtests.py", "numpy/_core/a.py"),
    ]
    for name in dead + alive:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    script.slim(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(alive)


@pytest.mark.parametrize("extras", [[], ["otel"], ["engine", "otel"], ["guards", "otel"]])
def test_an_image_has_the_gateways_packages_and_an_extras(extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = script.requirements(ROOT / "pyproject.toml", extras)
    assert wanted[: len(project["dependencies"])] == project["dependencies"]
    assert any(line.startswith("torch") for line in wanted) is ("engine" in extras or "guards" in extras)
    assert not any(line.startswith(("triton", "tollgate")) for line in wanted)
