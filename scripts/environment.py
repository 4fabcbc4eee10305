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

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed-from"
UNFINISHED = VENV / "install-unfinished"
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
HEARTBEAT_S = 15.0

LOCK_HEADER = """\
# Exact versions of everything `pip install -e ".[dev]"` brings, direct and transitive.
# Resolved on Python {python}; every version here also has wheels for the later Pythons we support.
# Regenerate with `make lock`. It keeps torch's version (change that line by hand) and writes it without a local
# part, so that torch's CPU builds (2.x.y+cpu) satisfy it too. What only torch's CUDA build needs is not pinned.
"""
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton\b)")
# torch asks for setuptools from Python 3.12 on, so a resolution on 3.11 does not list it by itself.
NOT_PINNED = re.compile(r"^(pip|wheel|tollgate)\b")


def say(message: str) -> None:
    print(message, flush=True)  # noqa: T201 - talking to the person at the terminal is this script's work


def wanted_stamp() -> str:
    """Everything that makes an existing environment wrong when it changes; the path because scripts embed it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = [project["build-system"], project["project"], project["tool"]["setuptools"]]
    digest = hashlib.sha256(json.dumps(installed).encode() + CONSTRAINTS.read_bytes()).hexdigest()
    return f"{platform.python_version()} {sys.base_prefix}\n{ROOT}\n{digest}\n"


def is_current() -> bool:
    try:
        return STAMP.read_text() == wanted_stamp() and python_in(VENV).exists()
    except OSError:
        return False


def python_in(venv: Path) -> Path:
    return venv / "bin" / "python"


def interpreter() -> str:
    """The Python behind us: a `.venv` that is itself active must not be asked to rebuild itself."""
    return getattr(sys, "_base_executable", None) or sys.executable


def pip(*arguments: str, venv: Path = VENV) -> list[str]:
    return [
        str(python_in(venv)),
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        *arguments,
    ]


def create(venv: Path) -> None:
    subprocess.run([interpreter(), "-m", "venv", "--clear", str(venv)], check=True)


def is_sound() -> bool:
    """Whether `.venv` can be updated in place: same Python, its pip works, no install broke off in the middle."""
    if UNFINISHED.exists() or not python_in(VENV).exists():
        return False
    probe = "import pip, platform, sys; print(platform.python_version(), sys.base_prefix)"
    found = subprocess.run([str(python_in(VENV)), "-c", probe], capture_output=True, text=True)
    return found.returncode == 0 and found.stdout.strip() == f"{platform.python_version()} {sys.base_prefix}"


def has_nvidia_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def pinned_torch() -> str:
    for line in CONSTRAINTS.read_text().splitlines():
        if line.startswith("torch=="):
            return line.strip()
    raise SystemExit("constraints.txt has no line `torch==<version>`: restore it, or run `make lock`.")


def has_torch() -> bool:
    probe = "import sys, importlib.metadata as m; sys.exit(m.version('torch').split('+')[0] != sys.argv[1])"
    version = pinned_torch().removeprefix("torch==")
    return subprocess.run([str(python_in(VENV)), "-c", probe, version], capture_output=True).returncode == 0


def shorten(line: str) -> str | None:
    """What of one line of pip's output is worth a person's attention: the large files and the last step."""
    line = line.strip()
    if match := re.match(r"Downloading (\S+?)-([0-9][^-]*)-\S+\.whl \(([\d.]+) ([MG]B)\)", line):
        name, version, size, unit = match.groups()
        return f"  downloading {name} {version} ({size} {unit})" if unit == "GB" or float(size) >= 5 else None
    if line.startswith("Installing collected packages:"):
        return f"  unpacking {line.count(',') + 1} packages"
    if line.startswith(("WARNING: Retrying", "WARNING: Connection")):
        return "  the package index does not answer; retrying"
    return None


def run_pip(command: list[str]) -> int:
    """Run pip with its output in the log, say what matters of it, and give a sign of life in long silences."""
    process = subprocess.Popen(
        [*command, "--progress-bar", "off"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    started = said = time.monotonic()
    packages = 0
    try:
        with LOG.open("a") as log:
            while True:
                try:
                    line = lines.get(timeout=1.0)
                except queue.Empty:
                    line = ""
                if line is None:
                    return process.wait()
                log.write(line)
                packages += line.startswith("Collecting ")
                news = shorten(line)
                if news is None and time.monotonic() - said > HEARTBEAT_S:
                    news = f"  still at it: {packages} packages found, {time.monotonic() - started:.0f} s"
                if news is not None:
                    say(news)
                    said = time.monotonic()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def install_small_torch() -> None:
    """Where there is no GPU, put torch's CPU build in first, so that pip finds its requirement already met."""
    if has_torch():
        return
    index = os.environ.get("TORCH_INDEX", "")
    if has_nvidia_gpu():
        if index:
            say("An NVIDIA GPU is present: TORCH_INDEX is not used, torch comes from the ordinary index.")
        return
    if not index:
        if sys.platform == "linux":
            say(
                "No NVIDIA GPU here, and on Linux the name torch is the CUDA build, several GB with its libraries."
            )
            say(
                "The CPU build is a tenth of that: stop and run this again with TORCH_INDEX=<the CPU index that"
            )
            say("pytorch.org/get-started prints>, unless your pip is already set up to find it.")
        return
    say(f"No NVIDIA GPU here: torch's CPU build from {index}")
    if run_pip(pip("--no-deps", "--retries", "1", "--timeout", "20", "--index-url", index, pinned_torch())):
        say(
            f"  NOTICE: nothing usable at TORCH_INDEX ({LOG.name} says why); torch comes from the ordinary index."
        )


def tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def update() -> None:
    started = time.monotonic()
    if is_sound():
        say("Updating .venv: its requirements changed.")
        STAMP.unlink(missing_ok=True)
    else:
        say(f"Creating .venv with Python {platform.python_version()}.")
        create(VENV)
    UNFINISHED.touch()
    LOG.write_text("")
    install_small_torch()
    say(f"Installing Tollgate and what it needs (full output: {LOG.relative_to(ROOT)}).")
    if run_pip(pip("--constraint", str(CONSTRAINTS), "--editable", ".[dev]")):
        say(tail(LOG, 20))
        raise SystemExit(
            "The installation failed; the end of pip's output is above. Is the package index reachable (proxy: "
            "HTTPS_PROXY, mirror: PIP_INDEX_URL)? Run the same command again: nothing half-installed is kept."
        )
    STAMP.write_text(wanted_stamp())
    UNFINISHED.unlink()
    say(f"Environment ready in {time.monotonic() - started:.0f} s.")


def lock() -> None:
    with tempfile.TemporaryDirectory(prefix="tollgate-lock-") as folder:
        venv = Path(folder) / "venv"
        say("Resolving in a fresh environment; this takes minutes.")
        create(venv)
        # Not editable: the project itself must not turn up as a path.
        subprocess.run(
            pip("--quiet", pinned_torch(), "setuptools", ".[dev]", venv=venv), cwd=ROOT, check=True
        )
        freeze = [str(python_in(venv)), "-m", "pip", "freeze", "--all"]
        found = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.splitlines()
    pins = [
        re.sub(r"\+\S+$", "", line)
        for line in found
        if not CUDA_ONLY.match(line) and not NOT_PINNED.match(line)
    ]
    header = LOCK_HEADER.format(python=".".join(platform.python_version_tuple()[:2]))
    CONSTRAINTS.write_text(header + "\n".join(sorted(pins, key=str.lower)) + "\n")
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
    if arguments == ["lock"]:
        return lock()
    if arguments:
        raise SystemExit(f"Unknown argument {arguments[0]!r}. Use none, or `lock`.")
    if is_current():
        return None
    with alone():
        if not is_current():
            update()
    return None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Run the same command again to finish.")
    except subprocess.CalledProcessError as error:
        sys.exit(f"This command failed with status {error.returncode}: {' '.join(map(str, error.cmd))}")
