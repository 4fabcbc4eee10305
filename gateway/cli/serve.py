"""``tollgate serve``: run the gateway, and the engines that the policy wants started."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import get_args

from gateway.backends.launcher import obstructed, unsound, wants_port
from gateway.cli import init
from gateway.cli.banner import banner
from gateway.cli.devkey import VARIABLE, DevelopmentKey, development_key, metrics_token, session_secret
from gateway.control.state_lock import StateInUse, state_lock
from gateway.identity.api_keys import hash_key
from gateway.observe import logs
from gateway.policy.key_store import state_files
from gateway.policy.key_table import KeyTableReader
from gateway.policy.loader import Loaded, load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.variables import Variables
from gateway.private import private_folder
from gateway.process.child_log import ChildLog
from gateway.process.listener import CannotListen, listen, reachable
from gateway.process.run import Callbacks
from gateway.process.run import run as run_gateway
from gateway.settings import LogLevel, Settings, SettingsError

log = logging.getLogger(__name__)

_PORT_TIMEOUT = 3.0
"""Seconds to wait for the engine of a previous gateway to release its port."""
_FLAGS = (
    "policies",
    "host",
    "port",
    "workers",
    "log_level",
    "shutdown_delay",
    "drain_timeout",
    "metrics_port",
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway, and the engines that the policy wants started. Ctrl-C lets requests in flight "
        "finish; a second Ctrl-C stops at once. At SIGTERM it goes on serving for a while first.",
        epilog="Every option can be given by an environment variable: TOLLGATE_POLICIES, TOLLGATE_HOST, TOLLGATE_PORT, "
        "TOLLGATE_WORKERS, TOLLGATE_LOG_LEVEL, TOLLGATE_SHUTDOWN_DELAY, "
        "TOLLGATE_DRAIN_TIMEOUT, TOLLGATE_METRICS_PORT. By environment only: TOLLGATE_LOG_FORMAT=json, "
        "TOLLGATE_STATE_DIR, TOLLGATE_DEV_KEY, TOLLGATE_MAX_BODY_BYTES, TOLLGATE_HEARTBEAT, TOLLGATE_READ_TIMEOUT, "
        "TOLLGATE_WRITE_TIMEOUT, TOLLGATE_MAX_CONNECTIONS, TOLLGATE_MAX_UNAUTHENTICATED, "
        "TOLLGATE_MAX_UNAUTHENTICATED_PER_ADDRESS, "
        "TOLLGATE_WATCHDOG, TOLLGATE_METRICS_TOKEN, TOLLGATE_METRICS_HOST, TOLLGATE_METRICS_TENANTS=true, "
        "TOLLGATE_SESSION_SECRET, TOLLGATE_SECRETS_DIR (a folder with a file for each secret, named as its variable).",
    )
    parser.add_argument("--policies", metavar="DIR", help="the policy folder (policies)")
    parser.add_argument(
        "--host", metavar="H", help="the address to listen on (127.0.0.1); 0.0.0.0 is all of them"
    )
    parser.add_argument("--port", metavar="P", help="the port to listen on (8000); 0 takes any that is free")
    parser.add_argument("--workers", metavar="N", help="worker processes (1); auto is one for each processor")
    parser.add_argument("--log-level", metavar="L", help=f"{', '.join(get_args(LogLevel))} (info)")
    parser.add_argument(
        "--shutdown-delay",
        metavar="S",
        help="seconds to go on serving after SIGTERM, not ready any more, until load balancers have noticed (5)",
    )
    parser.add_argument(
        "--drain-timeout",
        metavar="S",
        help="seconds that requests in flight get when the gateway is stopped (30)",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="P",
        help="a port of its own for /metrics, without a token: reachable for Prometheus alone (none: /metrics is on "
        "the gateway's port, behind a token); 0 takes any that is free",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    env = dict(os.environ)
    given = {f"TOLLGATE_{flag.upper()}": getattr(arguments, flag) for flag in _FLAGS}
    given["TOLLGATE_POLICIES"] = str(init.folder(arguments.policies, env))
    try:
        variables = Variables(env)
        settings = Settings.from_env(
            Variables({**env, **{name: value for name, value in given.items() if value is not None}})
        )
    except SettingsError as error:
        return _fail(_by_flag(str(error), given), code=2)
    logs.set_up(settings.log_level, settings.log_format)
    logs.take_uncaught()
    if settings.policies == init.BUILTIN:
        log.info(
            "no folder 'policies' here: serving the built-in policy; 'tollgate init' writes a copy to edit"
        )
    for notice in variables.notices():
        log.warning("%s", notice)
    tables = KeyTableReader()
    try:
        loaded = load_policy(
            settings.policies, variables, also=state_files(settings.state_dir), tables=tables
        )
    except PolicyError as error:
        return _refuse(f"the policy is rejected:\n{error}", settings)
    if why := wants_port(loaded, {settings.port, settings.metrics_port or 0} - {0}):
        return _refuse(why, settings)
    with ExitStack() as stack:
        try:
            listeners = listen(settings.host, settings.port, settings.workers)
            for listener in listeners:
                stack.enter_context(listener)
            operators = _operators_listeners(settings)
            for listener in operators:
                stack.enter_context(listener)
        except CannotListen as error:
            return _refuse(str(error), settings)
        if (
            why := _no_state(settings.state_dir)
            or unsound(loaded)
            or obstructed(loaded, patience=_PORT_TIMEOUT)
        ):
            return _refuse(why, settings)
        try:
            stack.enter_context(state_lock(settings.state_dir, alone=False))
        except StateInUse:
            return _refuse(
                f"'tollgate restore' is under way in {settings.state_dir}: start again when it has ended",
                settings,
            )
        if operators:
            host, port = reachable(operators[0])
            settings = replace(settings, metrics_port=port)
            log.info("/metrics is at %s/metrics", _url(host, port))
        return _serve(settings, loaded, listeners, operators, env, variables, tables)


def _no_state(folder: Path) -> str | None:
    """Why there can be no state folder. One that is only unwritable is said so, and the gateway serves without."""
    try:
        private_folder(folder)
        TemporaryFile(dir=folder).close()
    except (FileExistsError, NotADirectoryError):
        return f"the state folder '{folder}' is a file, or below one: name a folder by TOLLGATE_STATE_DIR"
    except OSError as error:
        log.error(
            "the state folder '%s' cannot be written (%s), so that no usage, keys, files or history of the policy are "
            "kept there, and secrets that are not there yet are made anew at each start. Let user %d write there, or "
            "name another folder by TOLLGATE_STATE_DIR",
            *(folder, error.strerror, os.getuid()),
        )
    return None


def _operators_listeners(settings: Settings) -> list[socket.socket]:
    """Those of the port for metrics, if there is to be one. Raises ``CannotListen``."""
    if settings.metrics_port is None:
        return []
    if settings.metrics_port == settings.port != 0:
        raise CannotListen(
            f"metrics cannot have a port of their own at {settings.port}, which is the gateway's: take another for "
            "--metrics-port, such as 9464"
        )
    try:
        host, port = settings.metrics_host or settings.host, settings.metrics_port
        return listen(host, port, settings.workers, option="--metrics-port")
    except CannotListen as error:
        raise CannotListen(f"no port for metrics: {error}") from None


def _serve(
    settings: Settings,
    loaded: Loaded,
    listeners: Sequence[socket.socket],
    operators: Sequence[socket.socket],
    env: dict[str, str],
    variables: Variables,
    tables: KeyTableReader,
) -> int:
    development = None
    if not (loaded.policy.keys or loaded.policy.jwt) or variables.get(VARIABLE):
        development = development_key(settings.state_dir, variables)
        settings = replace(settings, dev_key_sha256=hash_key(development.key))
    else:
        settings = replace(settings, dev_key_sha256=None)
    env.pop(VARIABLE, None)  # no child needs the key itself
    if settings.metrics_token is None:
        settings = replace(settings, metrics_token=metrics_token(settings.state_dir))
    if settings.session_secret is None:
        settings = replace(settings, session_secret=session_secret(settings.state_dir))
    reporter = _Reporter(settings, reachable(listeners[0]), development)
    running = run_gateway(settings, listeners, env, reporter.callbacks(), tables, operators=operators)
    try:
        return asyncio.run(running)
    except PolicyError as error:
        return _refuse(f"the policy is rejected:\n{error}", settings)


class _Reporter:
    """Reports what happens, to a person at a terminal or, as JSON lines, to a machine."""

    def __init__(
        self, settings: Settings, address: tuple[str, int], development: DevelopmentKey | None
    ) -> None:
        host, port = address
        self._url = _url(host, port)
        self._json = settings.log_format == "json"
        self._children = ChildLog(settings.log_format)
        self._policies = settings.policies
        self._development = development

    def callbacks(self) -> Callbacks:
        return Callbacks(self._children.write, self._wait, self._ready, self._draining, self._stop)

    def _wait(self, what: str) -> None:
        log.info("waiting for %s", what)

    def _ready(self, ready: Collection[str], loaded: Loaded) -> None:
        development = None if loaded.policy.keys or loaded.policy.jwt else self._development
        if not self._json:
            # A closed terminal is no reason to stop serving.
            with suppress(OSError):
                print(banner(self._url, loaded, ready, development, self._policies), flush=True)
            return
        key = {"development_key": development.source} if development else {}
        log.info(
            "ready at %s", self._url, extra={"url": self._url, "models": list(loaded.policy.models), **key}
        )

    def _draining(self, seconds: float) -> None:
        log.info(
            "stopping: not ready any more, and serving for another %g s; a second signal ends that", seconds
        )

    def _stop(self) -> None:
        log.info("stopping: requests in flight may finish; Ctrl-C again stops at once")


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _by_flag(message: str, given: Mapping[str, object]) -> str:
    """A setting's complaint names its variable; name the option where that is where it came from."""
    name = message.partition(" ")[0]
    if given.get(name) is None:
        return message
    return message.replace(name, "--" + name.removeprefix("TOLLGATE_").lower().replace("_", "-"), 1)


def _refuse(message: str, settings: Settings) -> int:
    """Why it does not serve: to a person, or to the machine that reads the log."""
    if settings.log_format == "json":
        log.critical("%s", message)
        return 1
    return _fail(message)


def _fail(message: str, *, code: int = 1) -> int:
    print(f"tollgate: {message}", file=sys.stderr)
    return code
