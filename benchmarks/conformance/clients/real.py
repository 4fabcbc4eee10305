"""Coding agents on a model with weights: each is sent on its errand with the bundled engine.

Whether the file is written depends on what the model samples, as no agent asks for a temperature of 0, so each may try
a few times. The first prompt of each is long; as all are in one folder, later ones find it in the prefix cache.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.conformance.clients.catalogue import Client
from benchmarks.conformance.clients.tried import BUNDLED, Tried, try_out
from benchmarks.conformance.stack import Stack

VARIABLE = "TOLLGATE_AGENT_MODEL"
HOW = (
    f"no weights: set {VARIABLE} to a GGUF file or a model's folder that the engine can serve, with a context of "
    "32,768 tokens and a chat template with tools: Qwen2.5-Coder-0.5B-Instruct is enough (490 MB in 4 bits)"
)
ATTEMPTS = 4


def weights() -> Path | None:
    """What the environment names. Raises ``FileNotFoundError``."""
    if not (named := os.environ.get(VARIABLE)):
        return None
    path = Path(named).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{VARIABLE} is {named}, which does not exist: {HOW}")
    return path


def errands(client: Client, stack: Stack) -> Iterator[Tried]:
    """One try after the other, up to the first that works. Raises ``tools.Missing`` without the agent."""
    with tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True) as folder:
        for _ in range(ATTEMPTS):
            [tried] = try_out(client, stack, [BUNDLED], folder=folder).tried
            yield tried
            if tried.works:
                return
