"""The sidecar's process: ``python -m gateway.sidecar.worker``, started by ``tollgate serve``.

Its configuration comes in an environment variable (``gateway.sidecar.config``). It serves from the start, while
models are loading.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import warnings
from pathlib import Path

from gateway.observe import logs
from gateway.settings import Settings, SettingsError
from gateway.sidecar.config import CONFIG, SidecarConfig
from gateway.sidecar.models.registry import ModelRegistry
from gateway.sidecar.server import serve

_QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
"""Libraries read these when they are imported. Only torch has threads, as many as the policy says."""
_VERBOSE = ("faiss", "presidio-analyzer", "sentence_transformers", "transformers")


def main() -> int:
    try:
        config = SidecarConfig.from_json(os.environ[CONFIG])
        settings = Settings.from_env(os.environ)
    except (KeyError, ValueError, TypeError, SettingsError) as error:
        print(f"{error}. The sidecar is started by 'tollgate serve'.", file=sys.stderr)  # noqa: T201
        return 2
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # meant for the libraries' developers
    logs.set_up(settings.log_level, settings.log_format)
    logs.take_uncaught()
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    asyncio.run(run(config))
    return 0


async def run(config: SidecarConfig) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal's Ctrl-C is the supervisor's
    registry = ModelRegistry(config)
    path = Path(config.socket)
    server = await serve(path, registry.handle)
    registry.start()
    try:
        await stop.wait()
    finally:
        server.close()
        await registry.aclose()
        path.unlink(missing_ok=True)  # noqa: ASYNC240
    # A forward pass in flight, or a library's thread, would delay the exit.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
