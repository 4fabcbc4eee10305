"""``tollgate scaler``: KEDA's external scaler, as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.extras import install_command
from gateway.policy.variables import Variables

if TYPE_CHECKING:
    from grpc import ServerCredentials

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
        type=_address,
        default="0.0.0.0:6000",
        help="where KEDA reaches it (%(default)s)",
    )
    parser.add_argument(
        "--state", metavar="FILE", type=Path, help="keeps four weeks of demand over a restart"
    )
    parser.add_argument(
        "--every", metavar="SECONDS", type=_seconds, default=5.0, help="between two readings (%(default)g)"
    )
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="its certificate, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="the certificate's key")
    parser.set_defaults(run=_run)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        # gRPC would listen at port 443, of all addresses.
        raise argparse.ArgumentTypeError("write HOST:PORT, with a port up to 65535: 0.0.0.0:6000")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 60:
        raise argparse.ArgumentTypeError("write a number of seconds from 0.05 to 60")
    return value


def _run(arguments: argparse.Namespace) -> int:
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        print("--tls-cert and --tls-key belong together.", file=sys.stderr)
        return 2
    try:
        import google.protobuf  # noqa: F401
        import grpc  # noqa: F401
    except ImportError:
        print(f"gRPC is not installed: {install_command('scaler')}", file=sys.stderr)
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

    tls = _tls(arguments)
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


def _tls(arguments: argparse.Namespace) -> ServerCredentials | None:
    import grpc

    if arguments.tls_cert is None:
        return None
    try:  # gRPC says of a pair that does not fit that the port cannot be had
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(arguments.tls_cert, arguments.tls_key)
    except ssl.SSLError as error:
        raise ValueError(
            f"{arguments.tls_cert} and {arguments.tls_key} are no certificate and its key, in PEM: {error}"
        ) from None
    return grpc.ssl_server_credentials([(arguments.tls_key.read_bytes(), arguments.tls_cert.read_bytes())])
