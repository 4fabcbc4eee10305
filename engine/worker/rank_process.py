"""The process of a rank other than the first: it loads its part of the model, and executes what rank 0 sends.

``python -m engine.worker.rank_process FD``
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys

from engine import logs
from engine.channel import Channel
from engine.core.plan import Plan
from engine.errors import StartupError
from engine.messages import LoadAdapter, UnloadAdapter
from engine.worker.follower import FollowerRank
from engine.worker.pipelined_runner import PipelinedRunner
from engine.worker.rank_messages import Finish, HeadRows
from engine.worker.runner import Runner

_PR_SET_PDEATHSIG = 1


def main(fd: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        # In a collective it would not notice that rank 0 has exited.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel(socket.socket(fileno=fd))
    try:
        (join,) = channel.receive(None)
        logs.set_up(join.config.log_level)
        try:
            follower = FollowerRank(join, channel)
            kind = Runner if follower.stages == 1 else PipelinedRunner
            runner = kind(join.config, follower)
        except StartupError as error:
            channel.send(error.message)
            return 0
        serve(runner, follower)
    except EOFError:
        return 0


def serve(runner: Runner, follower: FollowerRank) -> None:
    """Until rank 0 is gone: then raises ``EOFError``."""
    while True:
        match follower.receive():
            case Plan() as plan:
                runner.submit(plan)
            case HeadRows(rows):
                runner.share(rows)
            case Finish() if isinstance(runner, PipelinedRunner):
                runner.finish()
            case LoadAdapter(key, folder):
                runner.load_adapter(key, folder)
            case UnloadAdapter(key):
                runner.unload_adapter(key)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
