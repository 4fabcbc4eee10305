"""The engine process: ``python -m engine.process FD``

It lives as long as the HTTP process at the other end of the socket: end of file is its order to exit. Signals from a
terminal or a process group reach both; the HTTP process alone decides what they mean.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from contextlib import suppress

from engine import logs
from engine.channel import Channel
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.errors import StartupError
from engine.messages import Failed, Start
from engine.pooling.core import PoolingCore
from engine.pooling.spec import find_spec


def main(fd: int) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=fd))
    # A quarter of the time that imports take; all that they make stays.
    gc.disable()
    # It takes a second, and what is to be loaded is not known yet.
    threading.Thread(target=_import_torch, daemon=True).start()
    try:
        (start,) = channel.receive(None)
        if not isinstance(start, Start):
            raise TypeError(f"the first message must be Start, not {start!r}")
        logs.set_up(start.config.log_level)
        _spare_triton(start.config)
        loaded = threading.Event()
        threading.Thread(target=_leave_with, args=(channel, loaded), daemon=True).start()
        try:
            core = load(start.config, channel)
        except StartupError as error:
            channel.send(Failed(error.message))
            return 1
        loaded.set()
        channel.send(core.ready)
        # While the HTTP process takes that up. What start-up has left stays for ever: spare the collector from it.
        gc.enable()
        gc.collect()
        gc.freeze()
        core.run()
    except EOFError:
        return 0
    return 0


def load(config: EngineConfig, channel: Channel) -> EngineCore | PoolingCore:
    """Raises ``StartupError``."""
    spec = find_spec(config.model, config.task, matryoshka=config.matryoshka)
    return EngineCore(config, channel) if spec is None else PoolingCore(config, spec, channel)


def _leave_with(channel: Channel, loaded: threading.Event) -> None:
    """While a model is loaded, for minutes, nobody reads the channel."""
    channel.gone()
    if not loaded.is_set():
        os._exit(0)


def _import_torch() -> None:
    with suppress(ImportError):  # who needs it says so
        import torch  # noqa: F401


def _spare_triton(config: EngineConfig) -> None:
    """Where nothing can be on a GPU: 70 MiB, and a tenth of a start's processor time."""
    if config.kernels is None and "TOLLGATE_KERNELS" not in os.environ and config.device != "cuda":
        with suppress(ImportError):
            import torch

            if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
                os.environ["TOLLGATE_KERNELS"] = "native"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
