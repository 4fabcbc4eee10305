"""Which version and commit the commands tell: git's in a checkout, what the build wrote down elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import engine.version
import gateway.version

ROOT = Path(__file__).resolve().parents[1]
BOTH = pytest.mark.parametrize("module", [gateway.version, engine.version], ids=["gateway", "engine"])


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def a_package(folder: Path) -> Path:
    (folder / "pyproject.toml").write_text('[project]\nname = "tollgate"\nversion = "7.8.9"\n')
    (folder / "gateway").mkdir()
    (folder / "gateway" / "a.py").touch()
    return folder / "gateway"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@BOTH
def test_in_a_checkout_git_is_asked(tmp_path: Path, module: object) -> None:
    package = a_package(tmp_path)
    assert gateway.version.version(package) == "7.8.9"
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    git(tmp_path, "tag", "v7.8.9")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    tell = module.version  # type: ignore[attr-defined]
    assert tell(package) == f"7.8.9 ({commit})"
    (package / "a.py").write_text("changed")
    assert tell(package) == f"7.8.9 ({commit}-dirty)"


@BOTH
def test_a_build_tells_what_was_written_down(tmp_path: Path, module: object) -> None:
    package = a_package(tmp_path)
    (package / "commit").write_text("1a2b3c4\n")
    assert module.version(package) == "7.8.9 (1a2b3c4)"  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [["-m", "gateway"], ["-m", "engine"]])
def test_the_commands_tell_it(command: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, *command, "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert shown.split(maxsplit=1)[1] == f"{gateway.version.version()}\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree of its own: as for an image, whose build sees no repository."""
    for name in ("setup.py", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    for package in ("gateway", "engine", "kernels"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "README.md").touch()
    (tmp_path / "LICENSE").touch()
    return tmp_path


def build(source: Path) -> Path:
    """setup.py's own step; where it puts what a wheel has."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py"],
        cwd=source,
        env={"TOLLGATE_COMMIT": "1a2b3c4", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    return source / "build" / "lib"


def test_a_build_writes_the_commit_into_both_packages(source: Path) -> None:
    built = build(source)
    written = [(built / package / "commit").read_text() for package in ("gateway", "engine")]
    assert written == ["1a2b3c4\n", "1a2b3c4\n"]


def test_a_module_that_is_gone_is_not_built_again(source: Path) -> None:
    """`pip wheel .` leaves its build folder in the source."""
    gone = source / "gateway" / "gone.py"
    gone.touch()
    assert (build(source) / "gateway" / "gone.py").exists()
    gone.unlink()
    assert not (build(source) / "gateway" / "gone.py").exists()
