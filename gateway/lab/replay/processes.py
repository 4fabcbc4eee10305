"""The processes that replay: one a policy, as each has its own clock; side by side where there are cores for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from gateway.children.child import DIE_WITH_PARENT
from gateway.lab.replay.decisions import Decisions
from gateway.lab.replay.errors import ReplayError
from gateway.lab.replay.job import Job

Told = Callable[[float | None, str], None]
"""Takes the share that is done, and what is."""
SECONDS_TO_END = 10.0


class _Running:
    """One process, and what it tells."""

    def __init__(self, job: Job) -> None:
        self.job = job
        # Files without a name: of a replay that is killed nothing is left.
        self._files = (TemporaryFile(), TemporaryFile())  # noqa: SIM115  (``stop`` closes them)
        given, self._result = (Path(f"/dev/fd/{file.fileno()}") for file in self._files)
        self.error: str | None = None
        self.share = 0.0
        self.what = "starts"
        job.write(given)
        program = [sys.executable, "-m", "gateway.lab.replay", str(given), str(self._result)]
        # Hashes come out the same each time, and so does all that hangs on them.
        env = {**os.environ, "PYTHONHASHSEED": "0"}
        # In a session of its own, so that Ctrl-C reaches this process alone, which then ends that one.
        command = [*DIE_WITH_PARENT, str(os.getpid()), *program]
        self.process = subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[file.fileno() for file in self._files],
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            try:
                told = json.loads(line)
            except ValueError:
                continue
            self.error = told.get("error", self.error)
            if "what" in told:
                of = told["of"]
                self.share, self.what = told["done"] / of if of else 0.0, f"{told['what']} {told['done']:,}"

    def ended(self) -> Decisions | None:
        """None while it runs. Raises ``ReplayError``."""
        if (code := self.process.poll()) is None:
            return None
        self._reader.join()
        if code:
            raise ReplayError(self.error or f"the replay of {self.job.policies} ended with exit code {code}")
        return Decisions.load(self._result)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self._reader.join(SECONDS_TO_END)
            self.process.stdout.close()
        for file in self._files:
            file.close()


def replay_all(jobs: Sequence[Job], told: Told, cores: int) -> list[Decisions]:
    """Raises ``ReplayError``."""
    found: dict[int, Decisions] = {}
    running: dict[int, _Running] = {}
    waiting = [*enumerate(jobs)]
    try:
        while waiting or running:
            while waiting and len(running) < max(1, cores):
                place, job = waiting.pop(0)
                running[place] = _Running(job)
            for place, one in [*running.items()]:
                if (decisions := one.ended()) is not None:
                    found[place] = decisions
                    one.stop()
                    del running[place]
            if running:
                told(
                    (len(found) + sum(one.share for one in running.values())) / len(jobs),
                    "; ".join(f"{one.job.policies}: {one.what}" for one in running.values()),
                )
                try:
                    next(iter(running.values())).process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
    finally:
        for one in running.values():
            one.stop()
    return [found[place] for place in range(len(jobs))]
