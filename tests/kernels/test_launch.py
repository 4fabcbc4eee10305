from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kernels
from kernels import launch

CPU, GPU = SimpleNamespace(is_cuda=False), SimpleNamespace(is_cuda=True)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was asked of the environment and of the chip is asked anew, before and after."""
    for known in (launch.path, launch.arch):
        known.cache_clear()
    yield
    for known in (launch.path, launch.arch):
        known.cache_clear()


@pytest.fixture(params=["with triton", "without triton"])
def has_triton(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    has = request.param == "with triton"
    monkeypatch.setattr(launch, "triton", SimpleNamespace() if has else None)
    return has


@pytest.mark.parametrize("wanted", [None, "auto"])
def test_a_gpu_takes_triton_and_a_cpu_does_not(
    wanted: str | None, has_triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOLLGATE_KERNELS", raising=False)
    if wanted:
        monkeypatch.setenv("TOLLGATE_KERNELS", wanted)
    assert launch.on_triton(GPU) is has_triton
    assert launch.on_triton(CPU) is False
    assert launch.on_triton(torch.empty(1)) is False


def test_the_reference_is_taken_anywhere(has_triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLGATE_KERNELS", "reference")
    assert not launch.on_triton(GPU) and not launch.on_triton(CPU)


def test_triton_is_taken_anywhere_or_refused(has_triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLGATE_KERNELS", "triton")
    if has_triton:
        assert launch.on_triton(GPU) and launch.on_triton(CPU)
        return
    with pytest.raises(ValueError, match=r"TOLLGATE_KERNELS=triton, but triton is not installed"):
        launch.on_triton(CPU)


@pytest.mark.parametrize("wanted", ["", "cuda", "Triton"])
def test_other_paths_are_refused_by_name(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLGATE_KERNELS", wanted)
    with pytest.raises(ValueError, match=rf"TOLLGATE_KERNELS={wanted} is not one of auto, triton, reference"):
        launch.path()


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_80"),
        ((8, 9), "sm_80"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100"),
        ((10, 3), "sm_100"),
        ((7, 5), "sm_80"),
        ((12, 0), "sm_100"),
    ],
)
def test_a_chip_takes_the_nearest_table_below(
    capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    assert launch.arch(torch.device("cuda", 0)) == expected
    assert expected in launch.ARCHS


def test_amd_and_the_interpreter_have_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.arch(torch.device("cpu")) == "sm_90"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert launch.arch(torch.device("cuda", 0)) == "gfx942"
    assert launch.arch(torch.device("cpu")) == "sm_90"


def test_without_triton_kernels_are_plain_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "triton", None)

    def kernel() -> None: ...

    assert launch.jit(kernel) is kernel


WITHOUT_TRITON = """
import importlib, sys
sys.modules["triton"] = None
for name in sys.argv[1:]:
    importlib.import_module("kernels." + name)
import torch
from kernels import launch, rms_norm
assert launch.triton is None and launch.tl is None
x, weight = torch.randn(3, 64), rms_norm.twice(torch.ones(64))
torch.testing.assert_close(rms_norm.rms_norm(x, weight, 1e-6), rms_norm.rms_norm_reference(x, weight, 1e-6))
print("imported", len(sys.argv) - 1)
"""


def test_all_is_imported_where_there_is_no_triton() -> None:
    folder = Path(kernels.__file__).parent
    names = [file.stem for file in folder.glob("*.py") if not file.stem.startswith("__")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON, *names], capture_output=True, text=True, cwd=folder.parent
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"imported {len(names)}\n"


def test_attention_is_compiled_once_whatever_is_in_the_batch() -> None:
    """The first sequence more, or a longer table, must not pause a server while a kernel compiles."""
    pytest.importorskip("triton", reason="triton is installed on Linux alone")
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compilations"],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        cwd=Path(kernels.__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout)
    assert times == dict.fromkeys(times, 1) and len(times) >= 4


LOOP = """
import torch
from triton.runtime import interpreter

theirs = interpreter._patch_lang_tensor


def as_before_3_7(tensor, *scope):
    theirs(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data)


interpreter._patch_lang_tensor = as_before_3_7

from kernels.launch import jit, tl


@jit
def count(out):
    total = 0
    for i in range(0, tl.program_id(0) + 3):
        total += i
    tl.store(out, total)


out = torch.zeros(1, dtype=torch.int32)
count[(1,)](out)
assert out.item() == 3
"""


def test_the_interpreter_of_an_older_triton_counts_in_loops(tmp_path: Path) -> None:
    """Under the numpy that is pinned."""
    (tmp_path / "loop.py").write_text(LOOP)
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(kernels.__file__).parents[1])}
    subprocess.run([sys.executable, "loop.py"], cwd=tmp_path, env=env, check=True, timeout=300)
