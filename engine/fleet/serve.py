"""The life of a fleet: check what cannot fit, bind, keep models, serve, drain, leave."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop

from engine.errors import ModelNeverFits, StartupError
from engine.fleet import memory
from engine.fleet.app import create_app
from engine.fleet.folder import socket_folder
from engine.fleet.keeper import Keeper
from engine.fleet.member import Member
from engine.fleet.room import never_fits
from engine.fleet.roster import FleetConfig, ModelEntry, Roster
from engine.server.listening import KEEP_ALIVE, Server, bind, bind_first, first, url_of
from engine.server.protocol import Protocol

log = logging.getLogger("engine.fleet")

_SHARE = 0.8
"""Of the free memory, where no budget is given."""
_OWN = 64 * 2**20
"""Bytes that this process takes, about, before it was measured."""
_KV_CACHE = "--kv-cache-memory=256MiB"
"""Of each model that does not say: what fits into the machine would fit no budget."""
_FAREWELL = 2.0


def member_flags(entry: ModelEntry) -> list[str]:
    """Of ``python -m engine serve`` for one model."""
    sized = any(arg.startswith(("--kv-cache-memory", "--kv-cache-blocks")) for arg in entry.args)
    return [
        *(f"--model={entry.model}", f"--served-model-name={entry.name}", "--sleep-mode"),
        # Slow readers are disconnected in front.
        "--write-timeout=0",
        *(() if sized else (_KV_CACHE,)),
        *entry.args,
    ]


def check(roster: Roster) -> tuple[int, dict[str, int]]:
    """The budget, and what each model is predicted to take. Raises ``StartupError`` where one cannot start, or never
    fits beside those that are pinned."""
    budget = roster.memory or int(_SHARE * memory.free())
    needs = predicted(roster)
    pinned = [entry.name for entry in roster.models if entry.terms.pinned]
    for entry in roster.models:
        others = [name for name in pinned if name != entry.name]
        if never_fits(needs[entry.name], budget - _OWN, sum(needs[name] for name in others)):
            raise StartupError(ModelNeverFits(entry.name, needs[entry.name], budget - _OWN, others).message)
    return budget, needs


def predicted(roster: Roster) -> dict[str, int]:
    """Bytes of each model. Raises ``StartupError``."""
    asked = subprocess.run(
        [sys.executable, "-m", "engine.fleet.predicting"],
        input=json.dumps([member_flags(entry) for entry in roster.models]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        check=False,
    )
    if asked.returncode:
        why = asked.stderr.strip().rpartition("\n")[2].partition("error: ")
        raise StartupError(why[2] or why[0] or "The models' sizes could not be found out.")
    found: dict[str, int] = {}
    for entry, answer in zip(roster.models, json.loads(asked.stdout), strict=True):
        if not isinstance(answer, int):
            raise StartupError(f"The model '{entry.name}' would not start: {answer}")
        found[entry.name] = answer
    return found


def serve(config: FleetConfig, announce: Callable[[str], None]) -> int:
    """Runs until a signal, and returns the exit status. Raises ``StartupError``."""
    with bind_first(
        config.host, config.port, shared=config.share_port, standby=config.standby_port
    ) as listener:
        budget, needs = check(config.roster)
        for entry in config.roster.models:
            log.info("%s is expected to take %.0f MiB", entry.name, needs[entry.name] / 2**20)
        log.info("%d models in %.0f MiB", len(needs), budget / 2**20)
        with (
            socket_folder() as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_run(config, listener, folder, budget, needs, announce))


async def _run(
    config: FleetConfig,
    listener: Any,
    folder: Path,
    budget: int,
    needs: dict[str, int],
    announce: Callable[[str], None],
) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    promoted = asyncio.Event()
    if config.standby_port is not None:
        loop.add_signal_handler(signal.SIGUSR1, promoted.set)

    async def start(entry: ModelEntry, number: int) -> Member:
        return await Member.start(entry.name, member_flags(entry), folder, number)

    keeper = Keeper(config.roster, budget, needs, start)
    app = create_app(keeper, any_model_name=config.any_model_name, max_body_bytes=config.max_body_bytes)
    server = Server(
        uvicorn.Config(
            app,
            http=cast(Any, partial(Protocol, write_timeout=config.write_timeout)),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
    )
    began = time.monotonic()
    keeper.begin()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await first(server.listening.wait(), asyncio.wait({serving}))
        if serving.done():
            serving.result()
            return 1
        announce(url_of(listener))
        log.info("ready on %s in %.1f s", url_of(listener), time.monotonic() - began)
        if config.standby_port is not None:
            await first(promoted.wait(), stop.wait())
            if promoted.is_set() and not stop.is_set():
                await server.take_over(bind(config.host, config.port, shared=True))
                log.info("took over %s:%d", config.host, config.port)
        await stop.wait()
        server.should_exit = True
        await first(asyncio.wait({serving}, timeout=config.drain_timeout), hurry.wait())
        await keeper.close()
        await asyncio.wait({serving}, timeout=_FAREWELL)
        return 0
    finally:
        serving.cancel()
        await keeper.close()
