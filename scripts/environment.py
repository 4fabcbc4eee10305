"""Make and keep the development environment: `.venv`, with the project installed in it editable.

    python scripts/environment.py          bring .venv up to date; does nothing when it already is
    python scripts/environment.py lock     resolve afresh and rewrite constraints.txt

Runs on the standard library alone, under any Python >= 3.11 that has `venv`. A stamp inside `.venv` holds what
the environment was made from. It is written last, so an interrupted or failed install never counts as done.

TORCH_INDEX, if set, is the address of an index with CPU builds of torch. It is used only where there is no
NVIDIA GPU, for torch alone, and never required: if it cannot be reached, torch comes from the ordinary index.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

HEARTBEAT_S = 15.0
NOTABLE_MB = 5.0

LOCK_HEADER = """\
# Exact versions of everything `pip install -e ".[dev]"` brings, direct and transitive.
# Resolved on Python {python}; every version here also has wheels for the later Pythons we support.
# Regenerate with `make lock`. It keeps torch's version (change that line by hand) and writes it without a local
# part, so that torch's CPU builds (2.x.y+cpu) satisfy it too. What only torch's CUDA build needs is not pinned.
"""
NOT_PINNED = re.compile(r"(nvidia-|cuda-)|(pip|wheel|tollgate)\b")

# Dependencies that the Python resolved on need not have: torch's from 3.12 on, redis' before 3.11.3.
ONLY_ON_SOME_PYTHONS = ("setuptools", "async-timeout")


def say(message: str) -> None:
    print(message, flush=True)  # noqa: T201 - talking to the person at the terminal is this script's work


def base_python() -> str:
    """The Python behind us: a `.venv` that is itself active must not be asked to rebuild itself."""
    return getattr(sys, "_base_executable", None) or sys.executable


def pip_install(python: Path, *arguments: str) -> list[str]:
    return [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *arguments]


def has_nvidia_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def news_in(line: str) -> str | None:
    """What of one line of pip's output is worth a person's attention: the large files and the last step."""
    line = line.strip()
    if match := re.match(r"Downloading (?:\S+/)?([^/\s]+?)-([0-9][^-]*)-\S+\.whl \(([\d.]+) ([MG]B)\)", line):
        name, version, size, unit = match.groups()
        notable = unit == "GB" or float(size) >= NOTABLE_MB
        return f"  downloading {name} {unquote(version)} ({size} {unit})" if notable else None
    if line.startswith("Installing collected packages:"):
        return f"  unpacking {line.count(',') + 1} packages"
    if line.startswith(("WARNING: Retrying", "WARNING: Connection")):
        return "  the package index does not answer; retrying"
    return None


def stop(process: subprocess.Popen[str]) -> None:
    """End pip. Ctrl-C has reached it too: it gets time to remove its files, which a second one would cut short."""
    for number in (0, signal.SIGINT, signal.SIGKILL):
        try:
            process.send_signal(number)
            process.wait(timeout=5)
            return
        except subprocess.TimeoutExpired:
            continue


class Environment:
    """The `.venv` of the project in `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.stamp = self.venv / "installed-from"
        self.unfinished = self.venv / "install-unfinished"
        self.log = self.venv / "install.log"
        self.constraints = root / "constraints.txt"

    def wanted_stamp(self) -> str:
        """All that makes an existing environment wrong when it changes; the path because scripts embed it."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text())
        installed = [project["build-system"], project["project"], project["tool"]["setuptools"]]
        digest = hashlib.sha256(json.dumps(installed).encode() + self.constraints.read_bytes()).hexdigest()
        return f"{platform.python_version()} {sys.base_prefix}\n{self.root}\n{digest}\n"

    def is_current(self) -> bool:
        try:
            return self.stamp.read_text() == self.wanted_stamp() and self.python.exists()
        except OSError:
            return False

    def is_sound(self) -> bool:
        """Whether it can be updated in place: same Python, its pip works, no install broke off in the middle."""
        if self.unfinished.exists() or not self.python.exists():
            return False
        probe = "import pip, platform, sys; print(platform.python_version(), sys.base_prefix)"
        found = subprocess.run([str(self.python), "-c", probe], capture_output=True, text=True)
        return found.stdout.strip() == f"{platform.python_version()} {sys.base_prefix}"

    def create(self) -> None:
        subprocess.run([base_python(), "-m", "venv", "--clear", str(self.venv)], check=True)

    def pinned_torch(self) -> str:
        for line in self.constraints.read_text().splitlines():
            if line.startswith("torch=="):
                return line.strip()
        raise SystemExit("constraints.txt has no line `torch==<version>`: restore it from git.")

    def has_torch(self) -> bool:
        probe = (
            "import importlib.metadata as m, sys; sys.exit(m.version('torch').split('+')[0] != sys.argv[1])"
        )
        version = self.pinned_torch().removeprefix("torch==")
        return subprocess.run([str(self.python), "-c", probe, version], capture_output=True).returncode == 0

    def pip(self, *arguments: str) -> bool:
        """Run pip into the log, say what matters of it, give a sign of life in long silences; whether it worked."""
        command = pip_install(self.python, "--progress-bar", "off", *arguments)
        lines: queue.Queue[str | None] = queue.Queue()
        started = said = time.monotonic()
        with (
            self.log.open("a") as log,
            subprocess.Popen(
                command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process,
        ):

            def read() -> None:
                for line in process.stdout or ():
                    lines.put(line)
                lines.put(None)

            reader = threading.Thread(target=read)
            reader.start()
            try:
                while True:
                    try:
                        line = lines.get(timeout=1.0)
                    except queue.Empty:
                        line = ""
                    if line is None:
                        return process.wait() == 0
                    log.write(line)
                    news = news_in(line)
                    if news is None and time.monotonic() - said > HEARTBEAT_S:
                        news = f"  still at it, {time.monotonic() - started:.0f} s"
                    if news is not None:
                        say(news)
                        said = time.monotonic()
            finally:
                stop(process)
                reader.join()

    def install_small_torch(self) -> None:
        """Where there is no GPU, put torch's CPU build in first: pip then finds its requirement already met."""
        if self.has_torch():
            return
        index = os.environ.get("TORCH_INDEX", "")
        if has_nvidia_gpu():
            if index:
                say("An NVIDIA GPU is present: TORCH_INDEX is not used, torch comes from the ordinary index.")
        elif index:
            say(f"No NVIDIA GPU here: torch's CPU build from {index}")
            where = ("--no-deps", "--retries", "1", "--timeout", "20", "--index-url", index)
            if not self.pip(*where, self.pinned_torch()):
                say(f"  NOTICE: nothing usable at TORCH_INDEX ({self.log.name} says why);")
                say("  torch comes from the ordinary index.")
        elif sys.platform == "linux":
            say(
                "No NVIDIA GPU here, and on Linux the name torch is the CUDA build, several GB with its libraries."
            )
            say(
                "The CPU build is a tenth of that: stop and run this again with TORCH_INDEX=<the CPU index that"
            )
            say("pytorch.org/get-started prints>, unless your pip is set up to find a CPU build by itself.")

    def update(self) -> None:
        started = time.monotonic()
        if self.is_sound():
            say("Updating .venv: its requirements changed.")
            self.stamp.unlink(missing_ok=True)
        else:
            say(f"Creating .venv with Python {platform.python_version()}.")
            self.create()
        self.unfinished.touch()
        self.log.write_text("")
        self.install_small_torch()
        say(f"Installing Tollgate and what it needs (full output: {self.log.relative_to(self.root)}).")
        if not self.pip("--constraint", str(self.constraints), "--editable", ".[dev]"):
            say("\n".join(self.log.read_text(errors="replace").splitlines()[-20:]))
            raise SystemExit(
                "The installation failed; the end of pip's output is above. Is the package index reachable (proxy: "
                "HTTPS_PROXY, mirror: PIP_INDEX_URL)? Run the same command again: nothing half-installed is kept."
            )
        self.stamp.write_text(self.wanted_stamp())
        self.unfinished.unlink()
        say(f"Environment ready in {time.monotonic() - started:.0f} s.")

    def lock(self) -> None:
        """Resolve everything but torch to its newest version, in an environment of its own."""
        with tempfile.TemporaryDirectory(prefix="tollgate-lock-") as folder:
            fresh = Environment(Path(folder))
            say("Resolving in a fresh environment; this takes minutes.")
            fresh.create()
            # By its path and not editable, so that the freeze has the project on a line of its own.
            wanted = (self.pinned_torch(), *ONLY_ON_SOME_PYTHONS, f"{self.root}[dev]")
            subprocess.run(pip_install(fresh.python, "-qq", "--upgrade", *wanted), check=True)
            shutil.rmtree(
                self.root / "build", ignore_errors=True
            )  # setuptools' leftovers end up in later wheels
            freeze = [str(fresh.python), "-m", "pip", "freeze", "--all"]
            found = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.splitlines()
        pins = [re.sub(r"\+\S+$", "", line) for line in found if not NOT_PINNED.match(line)]
        header = LOCK_HEADER.format(python=".".join(platform.python_version_tuple()[:2]))
        self.constraints.write_text(header + "\n".join(sorted(pins, key=str.lower)) + "\n")
        say(f"constraints.txt: {len(pins)} packages.")


@contextmanager
def alone() -> Iterator[None]:
    """One install at a time: `make serve` beside `make test` on a fresh clone waits instead of colliding."""
    with open(__file__) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another make is installing here; waiting for it.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> None:
    environment = Environment(Path(__file__).resolve().parent.parent)
    if arguments == ["lock"]:
        environment.lock()
    elif arguments:
        raise SystemExit(f"Unknown argument {arguments[0]!r}. Use none, or `lock`.")
    elif not environment.is_current():
        with alone():
            if not environment.is_current():
                environment.update()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Run the same command again to finish.")
    except subprocess.CalledProcessError as error:
        sys.exit(f"This command failed with status {error.returncode}: {' '.join(map(str, error.cmd))}")
