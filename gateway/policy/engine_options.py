"""Whether the engine would start with a policy's options: it checks them itself, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from gateway import packages
from gateway.policy.schema import EngineBackend

_TIMEOUT = 30.0
"""Seconds. It reads its options in a fraction of one, and neither weights nor the hub."""


def start_error(backend: EngineBackend) -> str | None:
    """Why it would not start: unknown options, invalid values, a model that does not exist.

    None where it would, and where the engine is not installed, which is reported elsewhere.
    """
    if packages.missing(packages.ENGINE):
        return None
    argv = [sys.executable, "-m", "engine", "serve", "--model", backend.model, *backend.args, "--check"]
    try:
        tried = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"the engine could not check its options: {error}"
    if tried.returncode == 0:
        return None
    output = tried.stderr.strip().splitlines()
    why = output[-1].partition("error: ")[2] or output[-1] if output else f"code {tried.returncode}"
    return f"the engine would not start: {why}"
