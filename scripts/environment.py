"""Make and keep `.venv`, with the project installed in it editable. It grows by stages, each with what came before:

    python scripts/environment.py serve    gateway and engine
    python scripts/environment.py guards   and the packages of guards' models; a gateway asks for them itself
    python scripts/environment.py dev      and what tests and linters need
    python scripts/environment.py lock     resolve afresh and rewrite constraints.txt

A stage that is up to date costs nothing. Runs on the standard library alone, under any Python >= 3.11 that has `venv`.
A stamp inside `.venv` for each stage holds what it was made from. It is written last, so an interrupted or failed
install never counts as done.

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
from typing import Any

from pip_output import UNPACKING, PipOutput

LOCK_HEADER = """\
# Exact versions of everything `pip install -e ".[dev]"` brings, direct and transitive.
# Resolved on Python {python}; every version here also has wheels for the later Pythons we support.
# Regenerate with `make lock`. It keeps torch's version (change that line by hand) and writes it without a local
# part, so that torch's CPU builds (2.x.y+cpu) satisfy it too. What only torch's CUDA build needs is not pinned.
"""
STAGES = {
    "serve": ("engine",),
    "guards": ("guards",),
    "dev": (
        *("triton", "bedrock", "dns", "evaluate", "kubernetes"),
        *("kv-events", "otel", "postgres", "s3", "scaler", "dev"),
    ),
}
"""The extras of pyproject.toml that each stage adds to those before it."""
PURPOSE = {
    "serve": "gateway and engine",
    "guards": "the packages of guards and caches",
    "dev": "what tests and linters need",
}
TIDY_S = 5.0
"""What pip gets to remove its files after a Ctrl-C."""
UNPACK_S = 300.0
"""The longest that unpacking may take, once pip has begun and we are told to end."""

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


def stop(process: subprocess.Popen[str], patience: float) -> None:
    """End pip. Ctrl-C has reached it too: it gets time to remove its files, which a second one would cut short; and
    where only we were told to end, time to finish what it unpacks."""
    for number, seconds in ((0, patience), (signal.SIGINT, 5.0), (signal.SIGKILL, 5.0)):
        try:
            process.send_signal(number)
            process.wait(timeout=seconds)
            return
        except subprocess.TimeoutExpired:
            continue


class Environment:
    """The `.venv` of the project in `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.stamps = self.venv / "installed"
        self.unfinished = self.venv / "install-unfinished"
        self.installer = self.venv / "tollgate-installer"
        """The command by which a gateway that runs in here gets the packages of guards (gateway/packages.py)."""
        self.log = self.venv / "install.log"
        self.constraints = root / "constraints.txt"

    def project(self) -> dict[str, Any]:
        return tomllib.loads((self.root / "pyproject.toml").read_text())

    def requirements(self, stage: str) -> list[str]:
        """What a stage adds; not the project's own extras, which are other stages."""
        extras = self.project()["project"]["optional-dependencies"]
        lines = [line for extra in STAGES[stage] for line in extras[extra]]
        return [line for line in lines if not line.startswith(self.project()["project"]["name"])]

    def wanted_stamp(self, stage: str) -> str:
        """All that makes an installed stage wrong when it changes; the path because scripts embed it."""
        project = self.project()
        common = {key: value for key, value in project["project"].items() if key != "optional-dependencies"}
        installed = [project["build-system"], common, project["tool"]["setuptools"], self.requirements(stage)]
        digest = hashlib.sha256(json.dumps(installed).encode() + self.constraints.read_bytes()).hexdigest()
        return f"{platform.python_version()} {sys.base_prefix}\n{self.root}\n{digest}\n"

    def is_current(self, stage: str) -> bool:
        try:
            return (self.stamps / stage).read_text() == self.wanted_stamp(stage) and self.python.exists()
        except OSError:
            return False

    def missing(self, stage: str) -> list[str]:
        """The stages up to `stage` that are not installed as they should be."""
        upto = list(STAGES)[: list(STAGES).index(stage) + 1]
        return [one for one in upto if self.unfinished.exists() or not self.is_current(one)]

    def is_sound(self) -> bool:
        """Whether it can be updated in place: same Python, its pip works, no install broke off in the middle."""
        if self.unfinished.exists() or not self.python.exists():
            return False
        probe = "import pip, platform, sys; print(platform.python_version(), sys.base_prefix)"
        found = subprocess.run([str(self.python), "-c", probe], capture_output=True, text=True)
        return found.stdout.strip() == f"{platform.python_version()} {sys.base_prefix}"

    def create(self) -> None:
        command = [base_python(), "-m", "venv", "--clear", str(self.venv)]
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if made.returncode:
            say(made.stdout)
            made.check_returncode()

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

    def packages(self) -> Path:
        return next(self.venv.glob("lib/python3*/site-packages"), self.venv)

    def finds_cpu_torch(self) -> bool:
        """Whether pip, as it is set up here, takes a build for the CPU: a local version is above the plain one."""
        command = [str(self.python), "-m", "pip", "index", "versions", "torch", "--disable-pip-version-check"]
        found = subprocess.run(command, capture_output=True, text=True).stdout
        wanted = re.escape(self.pinned_torch().removeprefix("torch=="))
        builds = re.findall(rf"(?:^|[ (]){wanted}(?:\+([\w.]+))?(?=[,)\s]|$)", found)
        return max(builds, default="").startswith("cpu")

    def pip(self, *arguments: str) -> bool:
        """Run pip into the log, say what matters of it, give a sign of life in long silences; whether it worked.

        Until it begins to unpack pip changes nothing: what fails or is ended before then leaves all as it was.
        """
        command = pip_install(self.python, "--progress-bar", "off", *arguments)
        lines: queue.Queue[str | None] = queue.Queue()
        unpacking = threading.Event()
        self.unfinished.touch()
        with (
            tempfile.TemporaryDirectory(prefix="tollgate-pip-") as folder,
            self.log.open("a") as log,
            subprocess.Popen(
                command,
                cwd=self.root,
                env={**os.environ, "TMPDIR": folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process,
        ):
            output = PipOutput(self.packages(), Path(folder))

            def read() -> None:
                for line in process.stdout or ():
                    if line.startswith(UNPACKING):
                        unpacking.set()
                    lines.put(line)
                lines.put(None)

            reader = threading.Thread(target=read)
            reader.start()
            try:
                while True:
                    try:
                        line = lines.get(timeout=0.2 if output.moves else 1.0)
                    except queue.Empty:
                        output.tick()
                        continue
                    if line is None:
                        return process.wait() == 0
                    output.line(line)
                    log.write(line)
            finally:
                output.clear()
                stop(process, patience=UNPACK_S if unpacking.is_set() else TIDY_S)
                reader.join()
                if process.returncode == 0 or not unpacking.is_set():
                    self.unfinished.unlink(missing_ok=True)

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
        elif sys.platform == "linux" and not self.finds_cpu_torch():
            say(
                "No NVIDIA GPU here, and on Linux the name torch is the CUDA build, several GB with its libraries."
            )
            say(
                "The CPU build is a tenth of that: stop and run this again with TORCH_INDEX=<the CPU index that"
            )
            say("pytorch.org/get-started prints>.")

    def update(self, stages: list[str], *, running: bool = False) -> None:
        """Install these, which are all that is missing; ``running``: a gateway runs in there, so that it must stay."""
        started = time.monotonic()
        if not self.is_sound():
            if running:
                raise SystemExit(
                    "An installation into .venv broke off: stop the gateway, and `make serve` mends it."
                )
            say(f"Creating .venv with Python {platform.python_version()}.")
            self.create()
            stages = list(STAGES)[: list(STAGES).index(stages[-1]) + 1]
        for stage in stages:
            (self.stamps / stage).unlink(missing_ok=True)
        self.stamps.mkdir(exist_ok=True)
        command = [base_python(), str(self.root / "scripts" / "environment.py"), "guards", "--running"]
        self.installer.write_text(json.dumps(command))
        self.log.write_text("")
        wanted = [line for stage in stages for line in self.requirements(stage)]
        if any(line.startswith("torch") for line in wanted):
            self.install_small_torch()
        if "serve" in stages:
            wanted += ["--editable", "."]
        log = self.log.relative_to(self.root)
        say(f"Installing {', '.join(PURPOSE[stage] for stage in stages)} (full output: {log}).")
        if not self.pip("--constraint", str(self.constraints), *wanted):
            say("\n".join(self.log.read_text(errors="replace").splitlines()[-20:]))
            raise SystemExit(
                "The installation failed; the end of pip's output is above. Is the package index reachable (proxy: "
                "HTTPS_PROXY, mirror: PIP_INDEX_URL)? Run the same command again: nothing half-installed is kept."
            )
        if "serve" in stages:
            self.leave_old_name()
        for stage in stages:
            (self.stamps / stage).write_text(self.wanted_stamp(stage))
        say(f"Environment ready in {time.monotonic() - started:.0f} s.")

    def leave_old_name(self) -> None:
        """Take out what is named `tollgate`: ours, as it was called before 0.3, or the index's other project.

        Either owns bin/tollgate too, so ours is put in again; last, so that it is gone only for a moment.
        """
        if not any(self.packages().glob("tollgate-[0-9]*.dist-info")):
            return
        say(f"Replacing the package tollgate, whose name is {self.project()['project']['name']} now.")
        remove = [str(self.python), "-m", "pip", "uninstall", "--yes", "--quiet", "tollgate"]
        done = subprocess.run([*remove, "--disable-pip-version-check"]).returncode == 0
        if not (done and self.pip("--no-deps", "--editable", ".")):
            raise SystemExit(f"That failed ({self.log.name} says why): run the same command again.")

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
    match arguments:
        case ["lock"]:
            environment.lock()
        case [stage, *flags] if stage in STAGES and flags in ([], ["--running"]):
            if environment.missing(stage):
                with alone():
                    if stages := environment.missing(stage):
                        environment.update(stages, running=bool(flags))
        case _:
            raise SystemExit(f"Give one argument: {', '.join(STAGES)} or lock.")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Run the same command again to finish.")
    except subprocess.CalledProcessError as error:
        sys.exit(f"This command failed with status {error.returncode}: {' '.join(map(str, error.cmd))}")
