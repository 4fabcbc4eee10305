"""Put what an image needs into its environment, and take out what no server runs.

    python scripts/image.py /opt/tollgate            the gateway's own packages
    python scripts/image.py /opt/tollgate engine     those, and an extra's, or several extras'

Run by the Dockerfile, in a folder with pyproject.toml and constraints.txt and before the source is there: editing code
installs nothing anew. TORCH_INDEX, if set, is where torch comes from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

DEAD_WEIGHT = (
    "torch/test",
    "torch/include",
    "torch/share",
    "torch/bin/[!t]*",
    "torch/bin/test_*",
    "torch/lib/lib*_test.so",
    "torch/lib/libbackend_with_compiler.so",
    "torch/lib/libaoti_custom_ops.so",
    "**/*.a",
    "**/tests",
    "**/__pycache__",
)
"""Tests, headers, static libraries, and bytecode of modules that nothing imports: all of it 40 % of torch. What a
start imports is compiled afterwards, by the Dockerfile."""
SYMBOLS = (
    *("torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so", "uvloop/*.so"),
    *("spacy/**/*.so", "thinc/**/*.so", "blis/*.so", "srsly/**/*.so"),
)
"""Libraries with large tables for debuggers."""


def requirements(project: Path, extras: list[str]) -> list[str]:
    table = tomllib.loads(project.read_text())["project"]
    return [
        *table["dependencies"],
        *(line for extra in extras for line in table["optional-dependencies"][extra]),
    ]


def install(environment: Path, extras: list[str]) -> None:
    pip = (
        "pip",
        "--python",
        str(environment / "bin" / "python"),
        "install",
        "--no-cache-dir",
        "--no-compile",
    )
    index = os.environ.get("TORCH_INDEX")
    wanted = requirements(Path("pyproject.toml"), extras)
    if index and any(line.startswith("torch") for line in wanted):
        pins = Path("constraints.txt").read_text().splitlines()
        torch = next(line for line in pins if line.startswith("torch=="))
        subprocess.run([*pip, "--no-deps", "--index-url", index, torch], check=True)
    subprocess.run([*pip, "--constraint", "constraints.txt", *wanted], check=True)


def slim(packages: Path) -> None:
    """Take out of a ``site-packages`` what is dead weight."""
    for pattern in DEAD_WEIGHT:
        for path in list(packages.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    if shutil.which("strip"):
        for library in (path for pattern in SYMBOLS for path in packages.glob(pattern)):
            subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    install(target, sys.argv[2:])
    for found in target.glob("lib/python3*/site-packages"):
        slim(found)
