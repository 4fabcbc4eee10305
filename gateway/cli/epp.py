"""``tollgate epp``: an endpoint picker of the Gateway API Inference Extension, as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from gateway.cli import init
from gateway.cli.grpc_options import add_tls, credentials, grpc_address, misplaced_tls, missing_grpc, seconds
from gateway.policy.problems import PolicyError

if TYPE_CHECKING:
    from grpc import ServerCredentials

BESIDE = 2**20
"""Bytes of a message beside a body that comes whole in it."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "epp",
        help="pick engines for a gateway of Kubernetes: an InferencePool's endpoint picker",
        description="Serve the endpoint picker's protocol (Envoy's ext_proc): another gateway asks which replica of a "
        "backend a request is to go to. docs/inference_gateway.md has the manifests. Ctrl-C lets what is in flight "
        "end; a second one stops at once. At SIGTERM it goes on serving for a while first.",
        epilog="By environment only: TOLLGATE_SHUTDOWN_DELAY and TOLLGATE_DRAIN_TIMEOUT in seconds, TOLLGATE_ZONE, "
        "TOLLGATE_MAX_BODY_BYTES, TOLLGATE_LOG_LEVEL, TOLLGATE_LOG_FORMAT=json.",
    )
    parser.add_argument("--policies", metavar="DIR", help="the policy folder (policies)")
    parser.add_argument(
        "--backend", metavar="NAME", help="the backend whose replicas are picked (the only one that has any)"
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=grpc_address,
        default="0.0.0.0:9002",
        help="where the gateway reaches it (%(default)s)",
    )
    parser.add_argument(
        "--health",
        metavar="HOST:PORT",
        type=grpc_address,
        default="0.0.0.0:9003",
        help="where its health is asked for, without TLS (%(default)s)",
    )
    parser.add_argument(
        "--metrics-port", metavar="P", type=int, default=9090, help="of /metrics (%(default)s); 0: none"
    )
    parser.add_argument(
        "--patience",
        metavar="SECONDS",
        type=seconds(0, 600),
        default=1.0,
        help="that a request may wait for a place at an engine; then it is 429 (%(default)g)",
    )
    parser.add_argument(
        "--fallbacks",
        metavar="N",
        type=int,
        default=0,
        choices=range(11),
        help="engines that are named beside the first, for a gateway that tries again (%(default)s)",
    )
    parser.add_argument(
        "--state", metavar="DIR", type=Path, help="keeps which engines there were over a restart"
    )
    add_tls(parser)
    parser.add_argument(
        "--self-signed", action="store_true", help="TLS with a certificate that is made at the start"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if (wrong := misplaced_tls(arguments)) is not None:
        print(wrong, file=sys.stderr)
        return 2
    if arguments.self_signed and arguments.tls_cert is not None:
        print("--self-signed makes a certificate: leave --tls-cert and --tls-key out.", file=sys.stderr)
        return 2
    if (missing := missing_grpc()) is not None:
        print(missing, file=sys.stderr)
        return 1
    try:
        asyncio.run(_serve(arguments))
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, ValueError, RuntimeError) as error:
        print(f"The endpoint picker cannot start: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from grpc import aio
    from prometheus_client import start_http_server

    from gateway.observe import logs
    from gateway.picker.figures import FailureLog, Figures
    from gateway.picker.pool import EnginePool
    from gateway.picker.service import Service
    from gateway.picker.settings import PickerSettings
    from gateway.policy.reload import PolicyWatcher
    from gateway.policy.variables import Variables
    from gateway.settings import Settings

    variables = Variables()
    settings = Settings.from_env(variables)
    logs.set_up(settings.log_level, settings.log_format)
    tls = _tls(arguments)
    told: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.put_nowait, number)
    options = PickerSettings(
        arguments.backend, arguments.patience, arguments.fallbacks, settings.max_body_bytes
    )
    figures = Figures()
    async with AsyncExitStack() as stack:
        folder = arguments.state or Path(stack.enter_context(TemporaryDirectory(prefix="tollgate-epp-")))
        pool = EnginePool(options.backend, folder, zone=settings.zone, listener=FailureLog())
        stack.push_async_callback(pool.aclose)
        figures.show(pool)
        policies = init.folder(arguments.policies, variables)
        await stack.enter_async_context(PolicyWatcher(policies, pool.apply, env=variables))
        service = Service(pool, options, figures)
        # Two on one port would each be asked by chance.
        bound = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", options.max_body + BESIDE)]
        server, health = aio.server(options=bound), aio.server(options=bound)
        for one in (server, health):
            stack.push_async_callback(one.stop, None)
        service.add_to(server)
        service.add_health_to(health)
        if tls is None:
            port = server.add_insecure_port(arguments.listen)
        else:
            port = server.add_secure_port(arguments.listen, tls)
        health.add_insecure_port(arguments.health)
        if arguments.metrics_port:
            metrics, thread = start_http_server(arguments.metrics_port, registry=figures.registry)
            stack.callback(thread.join)
            stack.callback(metrics.shutdown)
        await health.start()
        await server.start()
        print(f"endpoint picker ready on {arguments.listen.rpartition(':')[0]}:{port}", flush=True)
        first = await told.get()
        service.stopping = True
        again = asyncio.create_task(told.get())
        if first == signal.SIGTERM:  # the gateway has to notice: until then it serves on
            await asyncio.wait([again], timeout=settings.shutdown_delay)
        ending = asyncio.create_task(server.stop(settings.drain_timeout))
        await asyncio.wait([again, ending], return_when=asyncio.FIRST_COMPLETED)
        again.cancel()


def _tls(arguments: argparse.Namespace) -> ServerCredentials | None:
    import grpc

    if not arguments.self_signed:
        return credentials(arguments)
    from gateway.picker.self_signed import self_signed

    return grpc.ssl_server_credentials([self_signed()])
