"""What pyproject.toml cannot say: a built package remembers the commit it was built from (see gateway/version.py)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PACKAGES = ("gateway", "engine")


def commit() -> str:
    """TOLLGATE_COMMIT where it is set, as for an image, whose build sees no repository; else what git says."""
    if given := os.environ.get("TOLLGATE_COMMIT", "").strip():
        return given
    if not (ROOT / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class Build(build_py):
    def run(self) -> None:
        if self.editable_mode:  # git is there to be asked each time
            super().run()
            return
        # What an earlier build has left there, of modules that are gone since, would be shipped too.
        shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
        super().run()
        for package in PACKAGES:
            if built := commit():
                (Path(self.build_lib) / package / "commit").write_text(built + "\n")


setup(cmdclass={"build_py": Build})
