"""Whether the engine would start with what a policy gives it: it is asked itself, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from gateway import packages
from gateway.policy.schema import EngineBackend

_PATIENCE = 30.0
"""Seconds. It reads its options in a fraction of one, and neither weights nor the hub."""


def complaint(backend: EngineBackend) -> str | None:
    """Why it would not start: options that it does not know, values that make no sense, a model that is not there.

    None where all is well, and where the engine is not installed, which is told elsewhere.
    """
    if packages.missing(packages.ENGINE):
        return None
    argv = [sys.executable, "-m", "engine", "serve", "--model", backend.model, *backend.args, "--check"]
    try:
        tried = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"the engine could not be asked whether it would start: {error}"
    if tried.returncode == 0:
        return None
    said = tried.stderr.strip().splitlines()
    why = said[-1].partition("error: ")[2] or said[-1] if said else f"code {tried.returncode}"
    return f"the engine would not start: {why}"
