"""Check the kernels with another Triton than the pinned one, in a folder of its own that is gone afterwards:

    python scripts/other_triton.py [VERSION] [--limit N] [--folder DIR]

Many GPU machines have Triton 3.6, whose compiler is another. Every kernel is compiled for every chip with it: once with
the assembler (ptxas) that comes with it, and once, for NVIDIA's chips, with the newer one of the pinned Triton, which
can be carried to such a machine (TRITON_PTXAS_PATH). Then the kernels' tests run in its interpreter. Where no package
index is reachable it says so, and nothing is checked; in CI that is a failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = "3.6.0"
NVIDIA = ("sm_80", "sm_90", "sm_100")
TESTS = ("tests/kernels", "tests/engine/worker/test_triton.py", "--ignore=tests/kernels/test_compile.py")
"""What is compiled ahead of time is reported apart; and the faults planted there are the pinned compiler's."""


def fetch(version: str, folder: Path) -> bool:
    """Puts Triton alone there. False, and said why, where that cannot be done."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--target", str(folder), f"triton=={version}"]
    if not (folder / "triton").is_dir() and subprocess.run(command).returncode:
        say(f"Triton {version} could not be fetched: the kernels were not checked with it.")
        return False
    return True


def newer_assembler() -> Path | None:
    """The one that the pinned Triton has for the newest chips, and that knows the others too."""
    found = subprocess.run(
        [sys.executable, "-c", "import triton; print(triton.__path__[0])"], capture_output=True, text=True
    )
    path = Path(found.stdout.strip(), "backends", "nvidia", "bin", "ptxas-blackwell")
    return path if found.returncode == 0 and path.is_file() else None


def check(folder: Path, limit: int | None) -> int:
    """How many of the checks failed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    # What another compiler has left is not this one's.
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    report = [sys.executable, "-m", "kernels", "report"]
    report += ["--limit", str(limit)] if limit else []
    failed = 0
    for name, command, more in (
        ("its own assembler", report, {}),
        ("the pinned Triton's assembler", [*report, "--arch", *NVIDIA], _assembler(folder)),
        ("its interpreter", [sys.executable, "-m", "pytest", "-q", "-x", *TESTS], {}),
    ):
        if more is None:
            say(f"{name}: not there, not tried")
            continue
        done = subprocess.run(command, cwd=ROOT, env={**environment, **more}, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).strip().splitlines()
        say(f"{name}: {'passed' if done.returncode == 0 else 'FAILED'}: {lines[-1] if lines else ''}")
        if done.returncode:
            failed += 1
            say("\n".join(line for line in lines[-60:]))
    return failed


def _assembler(folder: Path) -> dict[str, str] | None:
    path = newer_assembler()
    if path is None:
        return None
    # Its results are kept apart: Triton does not ask which assembler has made what it finds.
    return {
        "TRITON_PTXAS_PATH": str(path),
        "TRITON_PTXAS_BLACKWELL_PATH": str(path),
        "TRITON_CACHE_DIR": str(folder / "cache-newer"),
    }


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - talking to the person at the terminal is this script's work


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", nargs="?", default=VERSION)
    parser.add_argument("--limit", type=int, help="only so many variants of each operation")
    parser.add_argument("--folder", type=Path, help="keeps it there, and takes it from there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="triton-") as temporary:
        folder = options.folder or Path(temporary)
        if not fetch(options.version, folder):
            return 1 if os.environ.get("CI") else 0
        say(f"Triton {options.version}:")
        return min(1, check(folder, options.limit))


if __name__ == "__main__":
    sys.exit(main())
