"""The outside suites: each in an environment of its own, made on first use and kept under ``build/conformance``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "conformance"
LLM_COMPLY = "llm-comply==0.5.0"
SCHEMATHESIS = "schemathesis==4.32.5"
COMPATCANARY = "compatcanary@0.2.2"


class Missing(Exception):
    """A suite cannot be had on this machine."""


def from_pypi(requirement: str, *others: str) -> Path:
    """The environment's Python. Raises ``Missing`` where neither it nor the package index is there."""
    home = FOLDER / "+".join((requirement, *others)).replace("==", "-")
    python = home / "bin" / "python"
    made = home / "made"
    if not made.exists():
        run([sys.executable, "-m", "venv", "--clear", str(home)], requirement)
        run([str(python), "-m", "pip", "install", "--quiet", "--no-input", requirement, *others], requirement)
        made.touch()
    return python


def from_npm(package: str) -> list[str]:
    """The command that runs the package's program. Raises ``Missing`` without npm or its registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("npm is not installed (Debian, Ubuntu: apt-get install npm; Node 20 or later)")
    home = FOLDER / package.replace("@", "-")
    program = home / "node_modules" / ".bin" / package.partition("@")[0]
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        run([npm, "install", "--silent", "--no-audit", "--prefix", str(home), package], package)
    return [str(program)]


def run(command: list[str], what: str) -> None:
    """Install ``what``. Raises ``Missing``."""
    print(f"installing {what}: {' '.join(command[:3])} …", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Missing(f"{what} cannot be installed: {' '.join(last)}")
