"""What is fixed for the life of a process. The supervisor writes it into its workers' environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

SOCKET_FD = "TOLLGATE_SOCKET_FD"
"""The variable that tells a worker the file descriptor of the socket it serves on."""

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the environment variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of ``tollgate serve`` and of each worker. Every field can be given by an environment variable."""

    policies: Path = Path("policies")
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port."""
    workers: int = 1
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    shutdown_delay: float = 5.0
    """Seconds for which a gateway that gets SIGTERM goes on serving, while ``/readyz`` says 503: load balancers take
    a while to notice, and must not meet a closed port. Ctrl-C in a terminal does not wait."""
    drain_timeout: float = 30.0
    """Seconds that requests under way may still take when the gateway is stopped."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Larger request bodies are refused."""
    heartbeat: float = 10.0
    """Seconds after which a streaming caller that waits is sent a comment, so that nothing on the way cuts the
    connection; 0 is never."""
    read_timeout: float = 30.0
    """Seconds in which a client must send something of a request that it has begun, or all of its head."""
    write_timeout: float = 30.0
    """Seconds in which a client must take a tenth of what waits for it."""
    max_connections: int = 0
    """Of clients, at each worker; 0 is as many as the limit of file descriptors has room for."""
    max_unauthenticated: int = 0
    """Of these, connections on which no key was proven yet; 0 is half of them."""
    max_unauthenticated_per_address: int = 0
    """Of those, connections from one address; 0 is half of them."""
    watchdog: float = 10.0
    """Seconds of its processor time in which a worker's event loop makes no progress before the worker is replaced;
    0 is never."""
    metrics_token: str | None = None
    """Opens ``/metrics`` and the details of ``/readyz``; ``tollgate serve`` makes one where none is given."""
    metrics_tenants: bool = False
    """Whether ``/metrics`` tells tenants apart."""
    metrics_age: float = 1.0
    """Seconds for which ``/metrics`` is told again before it is written anew."""
    state_dir: Path = Path(".tollgate")
    """Where a development key is kept between runs."""
    dev_key_sha256: str | None = None
    """Hash of the key that is valid while a policy has no keys of its own."""
    last_good: Path | None = None
    """A copy of the last policy that worked: a worker that starts while the folder is broken takes it."""
    worker: int = 1
    """Which worker this process is, from 1."""
    leaving: Path | None = None
    """A file that comes to be when the gateway is to stop: from then on workers say that they are not ready."""
    taken_up: Path | None = None
    """A folder where each worker says which keys it lets in, for ``gateway.identity.control``."""
    sidecar: Path | None = None
    """The socket of the sidecar, which is there or not as the policy wants it; None: nobody starts one."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Raises SettingsError. A variable set to nothing counts as unset."""
        default = cls()
        state_dir, last_good = env.get("TOLLGATE_STATE_DIR"), env.get("TOLLGATE_LAST_GOOD")
        sidecar, leaving = env.get("TOLLGATE_SIDECAR"), env.get("TOLLGATE_LEAVING")
        taken_up = env.get("TOLLGATE_TAKEN_UP")
        return cls(
            policies=Path(env.get("TOLLGATE_POLICIES") or default.policies),
            host=env.get("TOLLGATE_HOST") or default.host,
            port=_integer(env, "TOLLGATE_PORT", default.port, 0, 65535),
            workers=_integer(env, "TOLLGATE_WORKERS", default.workers, 1, 1024),
            log_level=cast(
                LogLevel, _choice(env, "TOLLGATE_LOG_LEVEL", default.log_level, get_args(LogLevel))
            ),
            log_format=cast(
                LogFormat, _choice(env, "TOLLGATE_LOG_FORMAT", default.log_format, get_args(LogFormat))
            ),
            shutdown_delay=_seconds(env, "TOLLGATE_SHUTDOWN_DELAY", default.shutdown_delay),
            drain_timeout=_seconds(env, "TOLLGATE_DRAIN_TIMEOUT", default.drain_timeout),
            max_body_bytes=_integer(env, "TOLLGATE_MAX_BODY_BYTES", default.max_body_bytes, 1, 2**40),
            heartbeat=_seconds(env, "TOLLGATE_HEARTBEAT", default.heartbeat),
            read_timeout=_seconds(env, "TOLLGATE_READ_TIMEOUT", default.read_timeout, least=1),
            write_timeout=_seconds(env, "TOLLGATE_WRITE_TIMEOUT", default.write_timeout, least=1),
            max_connections=_integer(env, "TOLLGATE_MAX_CONNECTIONS", default.max_connections, 0, 2**20),
            max_unauthenticated=_integer(
                env, "TOLLGATE_MAX_UNAUTHENTICATED", default.max_unauthenticated, 0, 2**20
            ),
            max_unauthenticated_per_address=_integer(
                env,
                "TOLLGATE_MAX_UNAUTHENTICATED_PER_ADDRESS",
                default.max_unauthenticated_per_address,
                0,
                2**20,
            ),
            watchdog=_seconds(env, "TOLLGATE_WATCHDOG", default.watchdog),
            metrics_token=env.get("TOLLGATE_METRICS_TOKEN") or None,
            metrics_age=_seconds(env, "TOLLGATE_METRICS_AGE", default.metrics_age),
            metrics_tenants=_choice(env, "TOLLGATE_METRICS_TENANTS", "false", ("true", "false")) == "true",
            state_dir=Path(state_dir) if state_dir else default.state_dir,
            dev_key_sha256=_sha256(env, "TOLLGATE_DEV_KEY_SHA256"),
            last_good=Path(last_good) if last_good else None,
            worker=_integer(env, "TOLLGATE_WORKER", default.worker, 1, 1024),
            leaving=Path(leaving) if leaving else None,
            taken_up=Path(taken_up) if taken_up else None,
            sidecar=Path(sidecar) if sidecar else None,
        )

    def of_logs(self) -> dict[str, str]:
        """The part of ``to_env`` that says how to log, for processes that need no more."""
        return {"TOLLGATE_LOG_LEVEL": self.log_level, "TOLLGATE_LOG_FORMAT": self.log_format}

    def to_env(self) -> dict[str, str]:
        """What ``from_env`` reads back to the same settings."""
        return {
            **self.of_logs(),
            "TOLLGATE_POLICIES": os.fspath(self.policies),
            "TOLLGATE_HOST": self.host,
            "TOLLGATE_PORT": str(self.port),
            "TOLLGATE_WORKERS": str(self.workers),
            "TOLLGATE_SHUTDOWN_DELAY": str(self.shutdown_delay),
            "TOLLGATE_DRAIN_TIMEOUT": str(self.drain_timeout),
            "TOLLGATE_MAX_BODY_BYTES": str(self.max_body_bytes),
            "TOLLGATE_HEARTBEAT": str(self.heartbeat),
            "TOLLGATE_READ_TIMEOUT": str(self.read_timeout),
            "TOLLGATE_WRITE_TIMEOUT": str(self.write_timeout),
            "TOLLGATE_MAX_CONNECTIONS": str(self.max_connections),
            "TOLLGATE_MAX_UNAUTHENTICATED": str(self.max_unauthenticated),
            "TOLLGATE_MAX_UNAUTHENTICATED_PER_ADDRESS": str(self.max_unauthenticated_per_address),
            "TOLLGATE_WATCHDOG": str(self.watchdog),
            "TOLLGATE_METRICS_TOKEN": self.metrics_token or "",
            "TOLLGATE_METRICS_AGE": str(self.metrics_age),
            "TOLLGATE_METRICS_TENANTS": "true" if self.metrics_tenants else "false",
            "TOLLGATE_STATE_DIR": os.fspath(self.state_dir),
            "TOLLGATE_DEV_KEY_SHA256": self.dev_key_sha256 or "",
            "TOLLGATE_LAST_GOOD": os.fspath(self.last_good) if self.last_good else "",
            "TOLLGATE_WORKER": str(self.worker),
            "TOLLGATE_LEAVING": os.fspath(self.leaving) if self.leaving else "",
            "TOLLGATE_TAKEN_UP": os.fspath(self.taken_up) if self.taken_up else "",
            "TOLLGATE_SIDECAR": os.fspath(self.sidecar) if self.sidecar else "",
        }


def _integer(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or len(text) > 15 or not low <= int(text) <= high:
        raise SettingsError(f"{name} must be a whole number from {low} to {high}, not '{text}'")
    return int(text)


def _seconds(env: Mapping[str, str], name: str, default: float, *, least: float = 0) -> float:
    text = env.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not least <= seconds <= 86400:
        raise SettingsError(f"{name} must be a number of seconds from {least:g} to 86400, not '{text}'")
    return seconds


def _sha256(env: Mapping[str, str], name: str) -> str | None:
    text = env.get(name) or None
    if text is not None and not re.fullmatch("[0-9a-f]{64}", text):
        raise SettingsError(f"{name} must be a SHA-256 in 64 lower-case hex digits")
    return text


def _choice(env: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    text = (env.get(name) or default).lower()
    if text not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, not '{text}'")
    return text
