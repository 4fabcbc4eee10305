"""The engine's scheduler, in a process of its own: the gateway does not import the engine, and it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.workload import Arrival

COMMAND = (sys.executable, "-m", "engine", "simulate")


class Simulator:
    """Asks one question after the other. Raises ``PlanError`` where there is no answer."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True
        )
        self._sent: Sequence[Arrival] | None = None
        self.runs = 0

    def __enter__(self) -> Simulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._complaints.close()

    def memory(self, **given: Any) -> Mapping[str, Any]:
        return self._ask({"memory": given})

    def run(
        self,
        arrivals: Sequence[Arrival],
        block_tokens: int,
        machine: Mapping[str, Any],
        clock: Mapping[str, Any],
        patience: Mapping[str, float] | None = None,
    ) -> Mapping[str, Any]:
        """What became of each of ``arrivals``, and what the steps came to: ``Simulation.result`` of the engine.

        ``patience``: the bounds ``ttft`` and ``itl`` in seconds, and the ``share`` of requests that may be beyond them
        before it stops.
        """
        if arrivals is not self._sent:
            rows = [(one.at, one.prompt_tokens, one.output_tokens, one.blocks) for one in arrivals]
            self._ask({"arrivals": rows, "block_tokens": block_tokens})
            self._sent = arrivals
        self.runs += 1
        given = {"machine": machine, "clock": clock}
        return self._ask({"simulate": given if patience is None else {**given, "patience": patience}})

    def _ask(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise PlanError("the engine's simulator has no pipes")
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._complaints.seek(0)
            last = self._complaints.read().strip().rpartition("\n")[2]
            raise PlanError(f"the engine's simulator has ended: {last or 'without a word'}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise PlanError(f"the engine's simulator: {answer['error']}")
        return answer
