"""``tollgate scaler``: KEDA's external scaler, as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from gateway.cli.grpc_options import add_tls, credentials, grpc_address, misplaced_tls, missing_grpc, seconds
from gateway.policy.variables import Variables

SECONDS_TO_STOP = 3.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "scaler",
        help="tell KEDA how many engines are needed, before they are",
        description="Serve KEDA's external scaler protocol: demand of a backend as its gateways tell it now, and as "
        "other days and weeks had it by the time that a new engine would serve. docs/kubernetes.md has the trigger's "
        "metadata.",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=grpc_address,
        default="0.0.0.0:6000",
        help="where KEDA reaches it (%(default)s)",
    )
    parser.add_argument(
        "--state", metavar="FILE", type=Path, help="keeps four weeks of demand over a restart"
    )
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=seconds(0.05, 60),
        default=5.0,
        help="between two readings (%(default)g)",
    )
    add_tls(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if (wrong := misplaced_tls(arguments)) is not None:
        print(wrong, file=sys.stderr)
        return 2
    if (missing := missing_grpc()) is not None:
        print(missing, file=sys.stderr)
        return 1
    try:
        asyncio.run(_serve(arguments))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"The scaler cannot start: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from grpc import aio

    from gateway.scaler.service import Service

    tls = credentials(arguments)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    service = Service(Variables().get("TOLLGATE_METRICS_TOKEN", ""), arguments.state, arguments.every)
    # Two on one port would each be asked by chance.
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    try:
        service.add_to(server)
        port = (
            server.add_insecure_port(arguments.listen)
            if tls is None
            else server.add_secure_port(arguments.listen, tls)
        )
        await server.start()
        host = arguments.listen.rpartition(":")[0]
        print(f"scaler ready on {host}:{port}", flush=True)
        await stop.wait()
    finally:
        await server.stop(SECONDS_TO_STOP)
        await service.aclose()
