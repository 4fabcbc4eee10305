"""A child process that reads and writes lines of JSON: one engine of a comparison."""

from __future__ import annotations

import json
import select
import subprocess
from typing import Any


class Child:
    """Its first line reports that it is ready."""

    def __init__(self, *command: str, limit: float | None = None) -> None:
        """``limit``: seconds for its start. Raises ``ChildEnded``."""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._read(limit)

    def ask(self, limit: float | None = None, **question: Any) -> Any:
        """Raises ``ChildEnded``, also where there is no answer within ``limit`` seconds."""
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildEnded(f"a process has ended: {' '.join(self._process.args)}") from None
        return self._read(limit)

    def close(self) -> None:
        """Raises ``subprocess.TimeoutExpired`` where it does not leave."""
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _read(self, limit: float | None) -> Any:
        # Each answer is one line, and there is none without a question.
        if limit is not None and not select.select([self._process.stdout], [], [], limit)[0]:
            self._process.kill()
            raise ChildEnded(f"no answer within {limit:.0f} s: {' '.join(self._process.args)}")
        line = self._process.stdout.readline()
        if not line:
            raise ChildEnded(f"a process has ended: {' '.join(self._process.args)}")
        return json.loads(line)


class ChildEnded(SystemExit):
    pass
