"""Which Tollgate this is: its version, and the commit it was made from.

Gateway and engine do not know each other: gateway/version.py is the same.
"""

from __future__ import annotations

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def version(package: Path = PACKAGE) -> str:
    """As ``0.2.0 (1a2b3c4)``; in a checkout what is there now, else what the build wrote down (setup.py)."""
    source = package.parent
    try:
        number = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    except (OSError, ValueError, KeyError):
        try:
            number = metadata.version("tollgate-gateway")
        except metadata.PackageNotFoundError:
            number = "(not installed)"
    found = _written(package) or _from_git(source)
    return f"{number} ({found})" if found else str(number)


def _written(package: Path) -> str:
    try:
        return (package / "commit").read_text().strip()
    except OSError:
        return ""


def _from_git(source: Path) -> str:
    if not (source / ".git").exists():
        return ""
    command = ("git", "-C", str(source), "describe", "--always", "--dirty", "--exclude", "*")
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
