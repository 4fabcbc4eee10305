"""How the bundled engine is started as a child process. The gateway never imports it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.policy.loader import Loaded
from gateway.policy.schema import EngineBackend


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to run for a backend. Two that are equal need no restart."""

    argv: tuple[str, ...]


def launches(loaded: Loaded) -> Mapping[str, Launch]:
    """What is to be running for a policy, by backend name."""
    return {
        name: launch(backend)
        for name, backend in loaded.policy.backends.items()
        if isinstance(backend, EngineBackend) and backend.launch and name not in loaded.disabled
    }


def launch(backend: EngineBackend) -> Launch:
    url = urlsplit(backend.base_url)
    argv = (
        sys.executable,
        *("-m", "engine", "serve"),
        *("--model", backend.model),
        # Under the name that the policy's targets use: a folder would be served under its last part otherwise.
        *("--served-model-name", backend.model),
        *("--host", url.hostname or "127.0.0.1"),
        *("--port", str(url.port or 80)),
        *backend.args,
    )
    return Launch(argv)
