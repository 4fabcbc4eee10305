"""Options of the commands that serve gRPC."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.extras import install_command

if TYPE_CHECKING:
    from grpc import ServerCredentials


def grpc_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        # gRPC would listen at port 443, of all addresses.
        raise argparse.ArgumentTypeError("write HOST:PORT, with a port up to 65535: 0.0.0.0:6000")
    return text


def seconds(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"write a number of seconds from {least:g} to {most:g}")
        return value

    return read


def add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="its certificate, in PEM")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="the certificate's key")


def misplaced_tls(arguments: argparse.Namespace) -> str | None:
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        return "--tls-cert and --tls-key belong together."
    return None


def missing_grpc() -> str | None:
    try:
        import google.protobuf  # noqa: F401
        import grpc  # noqa: F401
    except ImportError:
        return f"gRPC is not installed: {install_command('scaler')}"
    return None


def credentials(arguments: argparse.Namespace) -> ServerCredentials | None:
    """None: without TLS. Raises ``ValueError`` and ``OSError``."""
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
