"""The process of a rank other than the first: it loads its part of the model, and executes what rank 0 sends.

``python -m engine.worker.rank_process FD`` on rank 0's host. With ``--node`` the socket is to another host, and a line
of JSON on standard input has the connection's key, the model's folder here and the device.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

from engine import logs
from engine.channel import Channel
from engine.core.plan import Plan
from engine.errors import StartupError
from engine.messages import LoadAdapter, UnloadAdapter
from engine.nodes.sealed_channel import SealedChannel
from engine.worker.feed import FedPlan
from engine.worker.follower import FollowerRank
from engine.worker.join import Join
from engine.worker.nodes import answer
from engine.worker.pipelined_runner import PipelinedRunner
from engine.worker.pulse import Pulse
from engine.worker.rank_messages import DropAdapter, Finish, HeadRows, RecordGraphs
from engine.worker.runner import Runner

_PR_SET_PDEATHSIG = 1


def main(fd: int, *, node: bool = False) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        # In a collective it would not notice that rank 0, or the process that listens for it, has exited.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sock = socket.socket(fileno=fd)
    try:
        if node:
            return _run_node(sock)
        channel = Channel(sock)
        (join,) = channel.receive(None)
        return _run(join, channel)
    except EOFError:
        return 0


def _run_node(sock: socket.socket) -> int:
    given = json.load(sys.stdin)
    model = Path(given["model"])
    channel = SealedChannel(sock, bytes.fromhex(given["key"]), rank0=False)
    threading.Thread(target=_leave_with, args=(channel,), daemon=True).start()
    if not answer(channel, model):
        return 0
    (join,) = channel.receive()
    if join.config.kernels is not None:
        os.environ["TOLLGATE_KERNELS"] = join.config.kernels
    device = given["device"] or ("cuda:0" if join.device == "cuda" else join.device)
    return _run(replace(join, config=replace(join.config, model=model), device=device), channel)


def _leave_with(channel: SealedChannel) -> None:
    """With rank 0's host: the main thread may wait in a collective."""
    channel.gone(speaking=True)
    os._exit(0)


def _run(join: Join, channel: Channel | SealedChannel) -> int:
    logs.set_up(join.config.log_level)
    pulse = Pulse(channel)
    try:
        follower = FollowerRank(join, channel, pulse)
        kind = Runner if follower.stages == 1 else PipelinedRunner
        runner = kind(join.config, follower)
    except StartupError as error:
        pulse.send(error.message)
        return 0
    serve(runner, follower)
    return 0


def serve(runner: Runner, follower: FollowerRank) -> None:
    """Until rank 0 is gone: then raises ``EOFError``."""
    while True:
        match follower.receive():
            case Plan() as plan:
                runner.follow(plan)
            case FedPlan(plan, feed):
                runner.follow(plan, feed)
            case RecordGraphs():
                runner.recordings.record_on_gpu()
            case HeadRows(rows):
                runner.share(rows)
            case Finish() if isinstance(runner, PipelinedRunner):
                runner.finish()
            case LoadAdapter() | DropAdapter() | UnloadAdapter() as change if runner.shared_adapters:
                runner.shared_adapters.follow(change)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), node="--node" in sys.argv[2:]))
