"""A process that answers lines of JSON: one engine of a comparison."""

from __future__ import annotations

import json
import subprocess
from typing import Any


class Child:
    """Its first line says that it is ready."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._read()

    def ask(self, **question: Any) -> Any:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)

    def _read(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise ChildEnded(f"a process has ended: {' '.join(self._process.args)}")
        return json.loads(line)


class ChildEnded(SystemExit):
    pass
