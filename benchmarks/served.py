"""An engine that serves a model while a benchmark runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import ended_in_order

_READY = re.compile(r"engine ready on (\S+)")


@contextmanager
def served(model: Path, options: Sequence[str]) -> Iterator[str]:
    """The engine's address."""
    command = [sys.executable, "-m", "engine", "serve", "--model", str(model), "--port", "0", *options]
    with ended_in_order(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = _READY.match(process.stdout.readline())
            if found is None:
                raise SystemExit("the engine did not start: see above")
            yield found[1]
        finally:
            process.terminate()
