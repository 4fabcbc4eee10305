"""What the scripts for coding agents share: an agent of its own package is sent on one errand in an empty folder.

The errand asks for one call of one of the agent's own tools, which writes a file; what the model says after it is the
agent's last word. Scripted providers make the call that the errand asks for (``providers.errand``); a real model is
asked with the same words. A script is run as those of ``script`` are, and with ``TOLLGATE_HOME``, the folder that the
agent is installed in. It defines what starts the agent::

    def errand(errand: Errand) -> str: ...   # the agent's last words

    run("@openai/codex", errand)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import script

PATIENCE_S = float(os.environ.get("TOLLGATE_AGENT_PATIENCE", "120"))
"""A real model on a CPU needs longer than this for an agent's first prompt."""
FOLDER = os.environ.get("TOLLGATE_AGENT_FOLDER", "")
"""Of several attempts, as agents' prompts have it before what a prefix cache could hold; else it is a new one."""
CONTENT = "written by an agent"
_HOME = Path(os.environ["TOLLGATE_HOME"])


@dataclass(frozen=True)
class Errand:
    model: str
    home: Path
    """For the agent's settings, and its ``HOME``."""
    folder: Path
    """Where it works, which is empty at first."""

    @property
    def file(self) -> Path:
        """What is to be written, with ``CONTENT``."""
        return self.folder / "note.txt"

    @property
    def url(self) -> str:
        """The gateway's, without ``/v1``."""
        return script.URL

    @property
    def key(self) -> str:
        return script.KEY

    def words(self, tool: str, **arguments: Any) -> str:
        """The prompt, as scripted providers know it."""
        return f"Call the tool {tool} once, with these arguments: {json.dumps(arguments)}"

    def start(self, program: str, *arguments: str, **env: str) -> str:
        """Run ``program`` of the agent's package; what it prints. Only ``env`` and the search path are handed on."""
        process = subprocess.Popen(
            [str(_HOME / "node_modules" / ".bin" / program), *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "dumb", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise TimeoutError(
                f"{program} is not done after {PATIENCE_S:.0f} s: {out} {err}"[-2000:]
            ) from None
        if process.returncode:
            raise RuntimeError(f"{program} ended with {process.returncode}: {out} {err}"[-2000:])
        return out


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(package: str, errand: Callable[[Errand], str]) -> None:
    """Tell of the agent of the npm package ``package``."""

    @script.feature("agent")
    def write_a_file(asked: script.Asked) -> str:
        # The file's path is short, as small models have to copy it.
        path = Path(FOLDER or tempfile.mkdtemp(prefix="agent-"))
        with _empty(path.with_name(f"{path.name}-home")) as home, _empty(path) as folder:
            sent = Errand(asked.model, home, folder)
            said = errand(sent).strip()
            script.true(
                sent.file.exists(), f"{sent.file.name} was not written; the agent's last words: {said!r}"
            )
            script.same(CONTENT, sent.file.read_text().strip(), sent.file.name)
            return said

    installed = json.loads((_HOME / "node_modules" / package / "package.json").read_text())
    script.attempt({package: installed["version"]})
