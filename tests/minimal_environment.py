"""A real environment with the gateway's own requirements and none of its extras."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def minimal_environment(folder: Path) -> Path:
    """Make it in ``folder``, of links to the packages of the one that runs the tests; its Python's path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in _with_what_they_need(_own_requirements()):
        for file in metadata.files(name) or ():
            top = file.parts[0]
            link = packages / top
            if top not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(str(metadata.distribution(name).locate_file(top)))
    (packages / "tollgate.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


def minimal_variables(**more: str) -> dict[str, str]:
    """The variables to run it with: nothing of this environment's, nor of Tollgate's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOLLGATE_", "PYTHON"))}
    return {**kept, "no_proxy": "*", "PYTHONUNBUFFERED": "1", **more}


def _own_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


def _with_what_they_need(queue: list[Requirement]) -> set[str]:
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        one = queue.pop()
        if (one.name, frozenset(one.extras)) in seen:
            continue
        seen.add((one.name, frozenset(one.extras)))
        found.add(one.name)
        for line in metadata.requires(one.name) or ():
            child = Requirement(line)
            if child.marker is None or any(child.marker.evaluate({"extra": e}) for e in ("", *one.extras)):
                queue.append(child)
    return found
