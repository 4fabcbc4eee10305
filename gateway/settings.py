"""What is fixed for the life of a process. The supervisor writes it into its workers' environment."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_type_hints

SOCKET_FDS = "TOLLGATE_SOCKET_FDS"
"""The variable that holds the file descriptors of listening sockets, port by port with a semicolon between: a worker's
own, then those of its siblings."""

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_DAY = 86400.0


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the environment variable."""


def _text(text: str) -> str:
    return text


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 15 or not low <= int(text) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}, not '{text}'")
        return int(text)

    return parse


def _workers(text: str) -> int:
    if text == "auto":
        return usable_processors()
    try:
        return _integer(1, 1024)(text)
    except ValueError as error:
        raise ValueError(str(error).replace("1024,", "1024, or 'auto',")) from None


def _seconds(low: float = 0) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not low <= seconds <= _DAY:
            raise ValueError(f"must be a number of seconds from {low:g} to {_DAY:g}, not '{text}'")
        return seconds

    return parse


def _choice(*choices: str) -> Callable[[str], Any]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not '{text.lower()}'")
        return text.lower()

    return parse


def _flag(text: str) -> bool:
    return bool(_choice("true", "false")(text) == "true")


def _secret(text: str) -> str:
    if len(text) < 32:
        raise ValueError("must have 32 characters or more: 'openssl rand -hex 32' makes one")
    return text


def _sha256(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("must be a SHA-256 in 64 lower-case hex digits")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of ``tollgate serve`` and of each worker.

    An environment variable, ``TOLLGATE_`` and the field's name, sets each field; the annotation has its parser, which
    raises ``ValueError``.
    """

    policies: Annotated[Path, Path] = Path("policies")
    host: Annotated[str, _text] = "127.0.0.1"
    port: Annotated[int, _integer(0, 65535)] = 8000
    """0 takes any free port."""
    workers: Annotated[int, _workers] = 1
    """``auto``: one for each processor that this process may use."""
    log_level: Annotated[LogLevel, _choice(*get_args(LogLevel))] = "info"
    log_format: Annotated[LogFormat, _choice(*get_args(LogFormat))] = "text"
    shutdown_delay: Annotated[float, _seconds()] = 5.0
    """Seconds for which a gateway that gets SIGTERM goes on serving, while ``/readyz`` answers 503: load balancers take
    a while to notice, and must not meet a closed port. Ctrl-C in a terminal does not wait."""
    drain_timeout: Annotated[float, _seconds()] = 30.0
    """Seconds that requests in flight may still take when the gateway is stopped."""
    max_body_bytes: Annotated[int, _integer(1, 2**40)] = 32 * 1024 * 1024
    """Larger request bodies are refused."""
    heartbeat: Annotated[float, _seconds()] = 10.0
    """Seconds without data after which a comment is sent in a stream, so that no proxy cuts the connection; 0 is
    never."""
    read_timeout: Annotated[float, _seconds(1)] = 30.0
    """Seconds in which a client must send something of a request that it has begun, or all of its head."""
    write_timeout: Annotated[float, _seconds(1)] = 30.0
    """Seconds in which a client must take a tenth of what waits for it."""
    max_connections: Annotated[int, _integer(0, 2**20)] = 0
    """Of clients, at each worker; 0 is as many as the limit of file descriptors allows."""
    max_unauthenticated: Annotated[int, _integer(0, 2**20)] = 0
    """Of these, connections on which no request was authenticated yet; 0 is half of them."""
    max_unauthenticated_per_address: Annotated[int, _integer(0, 2**20)] = 0
    """Of those, connections from one address; 0 is half of them."""
    watchdog: Annotated[float, _seconds()] = 10.0
    """Seconds of its processor time in which a worker's event loop makes no progress before the worker is replaced;
    0 is never."""
    metrics_token: Annotated[str | None, _text] = None
    """Opens ``/metrics`` and the details of ``/readyz``; ``tollgate serve`` makes one where none is given."""
    metrics_port: Annotated[int | None, _integer(0, 65535)] = None
    """A port for ``/metrics`` and the details of ``/readyz`` alone, which needs no token; None: they are on ``port``,
    behind the token. 0 takes any free port."""
    metrics_host: Annotated[str | None, _text] = None
    """The address of that port; None is ``host``."""
    session_secret: Annotated[str | None, _secret] = None
    """What seals the cookies of the page at ``/admin`` and compacted conversations; ``tollgate serve`` makes one where
    none is given."""
    metrics_tenants: Annotated[bool, _flag] = False
    """Whether ``/metrics`` has a label for the tenant, where the policy's ``metrics`` is silent."""
    metrics_age: Annotated[float, _seconds()] = 1.0
    """Seconds for which a rendered ``/metrics`` page is served again."""
    state_dir: Annotated[Path, Path] = Path(".tollgate")
    """Where a development key is kept between runs."""
    zone: Annotated[str | None, _text] = None
    """The zone that this gateway is in: replicas of a backend that are there, too, are asked first."""
    dev_key_sha256: Annotated[str | None, _sha256] = None
    """Hash of the key that is valid while a policy has no keys of its own."""
    last_good: Annotated[Path | None, Path] = None
    """A copy of the last policy that worked: a worker that starts while the folder is broken takes it."""
    worker: Annotated[int, _integer(1, 1024)] = 1
    """Which worker this process is, from 1."""
    draining: Annotated[Path | None, Path] = None
    """A file that exists once the gateway is to stop: from then on workers report that they are not ready."""
    in_force: Annotated[Path | None, Path] = None
    """A folder where each worker writes a digest of what it obeys, for ``gateway.control.in_force``."""
    slots: Annotated[Path | None, Path] = None
    """A folder where workers share the slots of backends; None: each has its part of them."""
    peers: Annotated[Path | None, Path] = None
    """A folder with a socket of each worker, by which they ask one another; None: this is the only one."""
    started: Annotated[Path | None, Path] = None
    """A folder where each worker leaves an empty file of its number once it accepts connections."""
    sidecar: Annotated[Path | None, Path] = None
    """The socket of the sidecar, which runs if the policy needs it; None: nobody starts one."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Raises ``SettingsError``. A variable that is set to nothing counts as unset."""
        given: dict[str, Any] = {}
        for name, kind in get_type_hints(cls, include_extras=True).items():
            if text := env.get(_variable(name)):
                try:
                    given[name] = kind.__metadata__[0](text)
                except ValueError as error:
                    raise SettingsError(f"{_variable(name)} {error}") from None
        return cls(**given)

    def log_env(self) -> dict[str, str]:
        """The part of ``to_env`` that configures logging, for processes that need no more."""
        return {"TOLLGATE_LOG_LEVEL": self.log_level, "TOLLGATE_LOG_FORMAT": self.log_format}

    def to_env(self) -> dict[str, str]:
        """What ``from_env`` reads back to the same settings."""
        return {_variable(one.name): _written(getattr(self, one.name)) for one in fields(self)}


def _variable(name: str) -> str:
    return f"TOLLGATE_{name.upper()}"


def _written(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def usable_processors() -> int:
    """Processors that this process may use, by its affinity and its control group's quota (cgroup v2 ``cpu.max``)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # none, or "max"
        pass
    return max(1, count)
