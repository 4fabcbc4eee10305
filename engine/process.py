"""The engine process: ``python -m engine.process FD``

It lives as long as the HTTP process at the other end of the socket: end of file is its order to exit. Signals from a
terminal or a process group reach both; the HTTP process alone decides what they mean.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys

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
    try:
        (start,) = channel.receive(None)
        if not isinstance(start, Start):
            raise TypeError(f"the first message must be Start, not {start!r}")
        logs.set_up(start.config.log_level)
        try:
            core = load(start.config, channel)
        except StartupError as error:
            channel.send(Failed(error.message))
            return 1
        # What start-up has left stays for ever: spare the collector from scanning it.
        gc.collect()
        gc.freeze()
        channel.send(core.ready)
        core.run()
    except EOFError:
        return 0
    return 0


def load(config: EngineConfig, channel: Channel) -> EngineCore | PoolingCore:
    """Raises ``StartupError``."""
    spec = find_spec(config.model, config.task, matryoshka=config.matryoshka)
    return EngineCore(config, channel) if spec is None else PoolingCore(config, spec, channel)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
