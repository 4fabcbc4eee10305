"""The life of ``tollgate serve``, which listens and supervises but serves no request itself: it only says that no
worker does yet.

Shutdown goes from the front to the back: ``/readyz`` answers 503 while the port stays open for load balancers that
have not noticed yet, then nothing new is accepted, the workers finish their requests, and the engines and the sidecar
are stopped.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.backends.launcher import launches
from gateway.children.child import OnLine
from gateway.control.control_socket import ControlSocket
from gateway.control.in_force import InForce, preallocate
from gateway.policy.history import PolicyHistory
from gateway.policy.key_store import state_files
from gateway.policy.key_table import KeyTableReader
from gateway.policy.loader import Loaded
from gateway.policy.reload import PolicyWatcher
from gateway.policy.unshared_state import unshared_state
from gateway.policy.variables import Variables
from gateway.process.last_good_policy import LastGoodPolicy
from gateway.process.ready_watch import until_ready
from gateway.process.scratch import scratch_folder
from gateway.process.stand_in import standing_in
from gateway.process.supervisor import Supervisor
from gateway.replicas.drains import drain_for_all
from gateway.settings import SOCKET_FDS, Settings
from gateway.sidecar.requirements import needs_sidecar, sidecar_config

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a run reports to the command line."""

    on_line: OnLine
    on_wait: Callable[[str], None]
    """What it waits for, each time that changes."""
    on_ready: Callable[[Collection[str], Loaded], None]
    """The gateway can serve, by these backends."""
    on_draining: Callable[[float], None]
    """It goes on serving for so many seconds, and is not ready any more."""
    on_stop: Callable[[], None]


async def run(
    settings: Settings,
    listeners: Sequence[socket.socket],
    env: Mapping[str, str],
    callbacks: Callbacks,
    tables: KeyTableReader | None = None,
    *,
    operators: Sequence[socket.socket] = (),
) -> int:
    """Serve until stopped by a signal; the exit code is 0, or 128 and the signal that cut the draining short.
    ``tables`` remembers the keys that it read before; ``operators`` listen on the operator's own port.

    Raises ``PolicyError`` if there is no policy to start with.
    """
    supervisor = Supervisor(
        env=env,
        on_line=callbacks.on_line,
        drain_timeout=settings.drain_timeout,
        watchdog=settings.watchdog,
        policies=settings.policies,
    )
    signals = StopSignals()
    with scratch_folder() as scratch:
        last_good = LastGoodPolicy(scratch)
        history = PolicyHistory(settings.state_dir, settings.policies)
        shared = replace(
            settings,
            last_good=last_good.path,
            sidecar=scratch / "sidecar.sock",
            draining=scratch / "draining",
            in_force=_folder(scratch / "in_force"),
            slots=_folder(scratch / "slots"),
            peers=_folder(scratch / "peers"),
            started=_folder(scratch / "started"),
        )

        said: set[str] = set()

        async def apply_policy(loaded: Loaded) -> None:
            nonlocal said
            # What was said before and still holds is not said again for each key that is made.
            notices = _notices(loaded, settings)
            for notice in notices:
                if notice not in said:
                    log.warning("%s", notice)
            said = set(notices)
            await asyncio.to_thread(last_good.keep, loaded)
            number = await asyncio.to_thread(_remember, history, loaded)
            await supervisor.run_engines(launches(loaded))
            socket = scratch / "sidecar.sock"
            wanted = sidecar_config(loaded.policy, socket) if needs_sidecar(loaded.policy) else None
            await supervisor.run_sidecar(wanted, settings.log_env())
            if supervisor.workers:
                in_force.announce(number, loaded)

        try:
            preallocate(scratch / "in_force", settings.workers)
            also = state_files(settings.state_dir)
            variables = Variables(env)
            watcher = PolicyWatcher(settings.policies, apply_policy, env=variables, also=also, tables=tables)
            in_force = InForce(scratch / "in_force", settings.workers, watcher)
            control = ControlSocket(
                settings.policies, settings.state_dir, watcher, in_force, variables, drain_for_all
            )
            async with in_force, watcher, control:
                ports = [listeners, operators] if operators else [listeners]
                _start_workers(supervisor, shared, ports, _shared_metrics(scratch, settings.workers))
                ready = asyncio.create_task(_announce(listeners[0], watcher, shared, callbacks))
                async with standing_in((*listeners, *operators), lambda: _accepting(shared) > 0):
                    await signals.stop.wait()
                was_ready = ready.done()
                ready.cancel()
                # Ctrl-C comes from a terminal, where no load balancer has to notice.
                if signals.last == signal.SIGTERM and was_ready and settings.shutdown_delay:
                    callbacks.on_draining(settings.shutdown_delay)
                    (scratch / "draining").touch()
                    await signals.pause(settings.shutdown_delay)
            callbacks.on_stop()
            for listener in (*listeners, *operators):
                listener.close()
            draining = asyncio.create_task(supervisor.shut_down())
            forced = asyncio.create_task(signals.force.wait())
            await asyncio.wait([draining, forced], return_when=asyncio.FIRST_COMPLETED)
            supervisor.kill()
            await draining
            forced.cancel()
            return 128 + signals.last if signals.force.is_set() else 0
        finally:
            supervisor.kill()


def _remember(history: PolicyHistory, loaded: Loaded) -> int:
    try:
        return history.add(loaded)
    except OSError as error:
        log.warning("this policy is missing from the history: %s: %s", error.filename, error.strerror)
        return history.number_of(loaded)


def _notices(loaded: Loaded, settings: Settings) -> list[str]:
    """What an operator should know of a policy."""
    shut = not loaded.policy.keys and not loaded.policy.jwt and settings.dev_key_sha256 is None
    no_keys = (
        "the policy has no keys, so every request is refused; make a key with 'tollgate keys create', or restart "
        "the gateway for a development key"
    )
    return [
        *([no_keys] if shut else ()),
        *(f"backend '{name}' is disabled: {reason}" for name, reason in loaded.disabled.items()),
        *map(str, loaded.warnings),
        *unshared_state(loaded.policy, settings.workers),
    ]


def _start_workers(
    supervisor: Supervisor,
    settings: Settings,
    ports: Sequence[Sequence[socket.socket]],
    env: Mapping[str, str],
) -> None:
    """``ports`` has the listening sockets of each port."""
    for number in range(1, settings.workers + 1):
        turned = [_own_first(listeners, number - 1) for listeners in ports]
        text = ";".join(" ".join(map(str, fds)) for fds in turned)
        supervisor.start_worker(
            "gateway" if settings.workers == 1 else f"gateway {number}",
            (sys.executable, "-m", "gateway.process.worker"),
            env={**replace(settings, worker=number).to_env(), **env, SOCKET_FDS: text},
            pass_fds=[fd for fds in turned for fd in fds],
        )


def _own_first(listeners: Sequence[socket.socket], worker: int) -> list[int]:
    """File descriptors: that of the worker's own socket, then the others'."""
    own = worker % len(listeners)
    return [listener.fileno() for listener in (listeners[own], *listeners[:own], *listeners[own + 1 :])]


async def _announce(
    listener: socket.socket, watcher: PolicyWatcher, settings: Settings, callbacks: Callbacks
) -> None:
    def missing() -> int:
        return settings.workers - _accepting(settings)

    token = settings.metrics_token or ""
    callbacks.on_ready(*await until_ready(listener, watcher, token, callbacks.on_wait, missing))


def _accepting(settings: Settings) -> int:
    """Workers that have accepted connections."""
    return len(list(settings.started.iterdir())) if settings.started else 0


def _shared_metrics(scratch: Path, workers: int) -> dict[str, str]:
    """A folder where several workers sum up their metrics, so that ``/metrics`` of any of them covers all.

    Each checks for itself that the disk has space for its own (``gateway.observe.prometheus.files``).
    """
    return {"PROMETHEUS_MULTIPROC_DIR": str(_folder(scratch / "metrics"))} if workers > 1 else {}


def _folder(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


_ECHO = 0.2
"""Seconds in which a second signal is a duplicate: some wrappers forward what the terminal has sent already."""


class StopSignals:
    """The first signal asks to stop; each further one cuts short the current wait, draining included."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self.last = 0
        self._skip_pause: asyncio.Event | None = None
        self._received_at = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                loop.add_signal_handler(number, self._received, number)

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the next signal."""
        self._skip_pause = asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._skip_pause.wait(), seconds)
        self._skip_pause = None

    def _received(self, number: signal.Signals) -> None:
        self.last = number
        if not self.stop.is_set():
            self._received_at = time.monotonic()
            self.stop.set()
        elif time.monotonic() - self._received_at > _ECHO:
            self._received_at = time.monotonic()
            (self._skip_pause or self.force).set()
