"""Kernels compiled ahead of time, as ``python -m kernels report`` does it: in a process without the interpreter, once
for all workers of the test run. All variants for all chips are slow; one of each kernel for two chips is not."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.__main__ import main
from kernels.launch import ARCHS
from kernels.report import operations

pytest.importorskip("triton", reason="triton is installed on Linux alone")

pytestmark = pytest.mark.timeout(900)  # All wait for the first, which compiles.

ROOT = Path(__file__).parents[2]
FAULTY = "tests.kernels.faulty_kernels"

FAULTS = {
    "spills": "spills ",
    "too much shared memory": "bytes of shared memory",
    "too many threads": "2048 threads a block of 1024",
    "dot without matrix instructions": "matrix products without matrix instructions: 1",
    "no dot where one is promised": "has no matrix instructions",
    "twice": "is the name of 2 variants",
    "does not compile": "no attribute 'no_such_function'",
    "misnamed argument": "given for ['SIZE', 'x', 'y']",
    "crashes the compiler": "the compiler crashed",
}
COMPILERS = ("sm_90", "gfx942")
"""A chip of each maker, as their compilers differ."""
CHIPS = [arch if arch in COMPILERS else pytest.param(arch, marks=pytest.mark.slow) for arch in ARCHS]
ABSENT = {("gfx942", "dot without matrix instructions")}
ABSENT |= {(arch, "crashes the compiler") for arch in ARCHS if arch != "gfx942"}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of the test run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def report(folder: Path, name: str, *arguments: str) -> dict:
    """What the command printed and wrote. Whoever comes first runs it, and the others wait."""
    file = folder / f"kernels-{name}.json"
    with (folder / f"kernels-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            rows = folder / f"kernels-{name}-rows.json"
            command = [sys.executable, "-m", "kernels", "report", "--json", str(rows), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            if not rows.exists():
                raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
            written = json.loads(rows.read_text())
            file.write_text(json.dumps({"status": done.returncode, "text": done.stdout, "rows": written}))
    return json.loads(file.read_text())


def faulty(folder: Path, arch: str) -> dict:
    return report(folder, f"faulty-{arch}", "--only", FAULTY, "--arch", arch)


def check(rows: list[dict], op: str, arch: str) -> None:
    found = [row for row in rows if (row["op"], row["arch"]) == (op, arch)]
    assert found
    assert {row["variant"]: row["faults"] for row in found if row["faults"]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", operations())
def test_compiles_without_faults(op: str, arch: str, reports: Path) -> None:
    check(report(reports, "all")["rows"], op, arch)


@pytest.mark.parametrize("arch", COMPILERS)
@pytest.mark.parametrize("op", operations())
def test_one_variant_of_each_kernel_compiles_without_faults(op: str, arch: str, reports: Path) -> None:
    done = report(reports, f"one-{arch}", "--limit", "1", "--arch", arch)
    check(done["rows"], op, arch)
    assert len(done["rows"]) == len(operations())


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        pytest.param(arch, name, marks=[] if arch in COMPILERS else pytest.mark.slow)
        for arch in ARCHS
        for name in FAULTS
        if (arch, name) not in ABSENT
    ],
)
def test_faults_are_found(name: str, arch: str, reports: Path) -> None:
    done = faulty(reports, arch)
    assert done["status"] == 1
    rows = [row for row in done["rows"] if (row["variant"], row["arch"]) == (name, arch)]
    [fault] = [fault for row in rows for fault in row["faults"]]
    assert FAULTS[name] in fault
    assert f"FAULT {FAULTY} {arch} {name}:" in done["text"]
    assert all(line in done["text"] for line in fault.splitlines())
    assert "Traceback" not in done["text"]


@pytest.mark.parametrize("arch", CHIPS)
def test_what_is_good_is_not_called_faulty(arch: str, reports: Path) -> None:
    rows = faulty(reports, arch)["rows"]
    good = {row["variant"]: row for row in rows if row["variant"].startswith("good")}
    assert len(good) == 4
    assert not any(row["faults"] for row in good.values())
    kind = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "gfx942": "mfma"}[arch]
    code = {name: row["code"] for name, row in good.items()}
    assert code["good loop"]["matrix"].keys() == {kind}
    assert code["good loop"]["shared"] > 0 and code["good loop"]["registers"] > 16
    assert code["good copy"]["wide_loads"] and not code["good copy"]["matrix"]
    assert not code["good copy of single numbers"]["wide_loads"]


@pytest.mark.parametrize("arguments", [["--arch", "sm_70"], ["--only", "no_such_op"], ["--limit", "0"]])
def test_what_there_is_not_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # the command takes it away
    monkeypatch.setattr(sys, "argv", ["kernels", "report", *arguments])
    assert main() == 2
    assert arguments[1] in capsys.readouterr().err


def test_on_amd_all_threads_wait_for_their_stores_before_one_of_them_counts() -> None:
    """There a barrier alone does not: see ``finish`` in kernels/split_k.py."""
    script = (
        "from kernels.compile import _compile; from kernels.linear_w8a16 import variants;"
        "variant = next(v for v in variants('gfx942') if v.constants['SPLITS'] > 1);"
        "print(_compile(variant, 'gfx942').asm['amdgcn'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    between = done.stdout.split("global_atomic_add")[0].rsplit("global_store", 1)[1]
    assert between.index("s_waitcnt vmcnt(0)") < between.index("s_barrier") < between.index("buffer_wbl2")
