"""The command that adds one of our extras to the environment this runs in.

Never by a bare name: a package index may know another project by it. Gateway and engine do not know each other:
engine/extras.py is the same.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "tollgate-gateway"
PACKAGE = Path(__file__).resolve().parent


def install_command(extra: str, package: Path = PACKAGE) -> str:
    """As ``/x/.venv/bin/python -m pip install -e '/x[postgres]'``: this interpreter, and what it runs from.

    Where the source is gone, as in an image, it is what the extra stands for.
    """
    pip = (sys.executable, "-m", "pip") if find_spec("pip") else ("pip", "--python", sys.executable)
    return shlex.join((*pip, "install", *_what(extra, package.parent)))


def _what(extra: str, root: Path) -> list[str]:
    if _is_ours(root / "pyproject.toml"):
        return ["-e", f"{root}[{extra}]"]
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return [f"<folder of the source>[{extra}]"]
    if (origin := _origin(found.read_text("direct_url.json"))) is not None:
        return [f"{origin}[{extra}]"]
    lines = (line.partition(";") for line in found.requires or ())
    return [line.strip() for line, _, marker in lines if re.search(rf"extra == ['\"]{extra}['\"]", marker)]


def _is_ours(project: Path) -> bool:
    try:
        return bool(tomllib.loads(project.read_text())["project"]["name"] == DISTRIBUTION)
    except (OSError, ValueError, KeyError):
        return False


def _origin(direct_url: str | None) -> Path | None:
    """The folder or wheel that it was installed from (https://peps.python.org/pep-0610/), if that is still there."""
    url = urlsplit(json.loads(direct_url)["url"] if direct_url else "")
    path = Path(unquote(url.path))
    return path if url.scheme == "file" and path.exists() else None
