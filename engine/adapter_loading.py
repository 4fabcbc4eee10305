"""LoRA adapters loaded and unloaded while requests run, in the engine process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.core.scheduler import Scheduler
from engine.errors import InvalidRequest
from engine.messages import AdapterDone

if TYPE_CHECKING:
    from engine.worker.runner import Runner

log = logging.getLogger("engine.process")


class AdapterLoading:
    def __init__(self, runner: Runner, scheduler: Scheduler, send: Callable[[AdapterDone], None]) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._send = send
        self._unloading: set[str] = set()
        """Adapters to be unloaded when the last request that uses them has ended."""

    def __contains__(self, key: str) -> bool:
        """Whether new requests may use it."""
        bank = self._runner.adapters
        return bank is not None and key in bank.loaded and key not in self._unloading

    def load(self, key: str, folder: Path) -> None:
        """Between two steps: running requests wait while the files are read."""
        try:
            digest = self._runner.load_adapter(key, folder)
        except InvalidRequest as error:
            self._send(AdapterDone(key, error.message))
        except Exception:
            # Whatever is wrong with a folder must not end the requests that run.
            log.exception("an adapter could not be loaded from %s", folder)
            self._send(AdapterDone(key, "It cannot be read; the engine's log has the details."))
        else:
            self._send(AdapterDone(key, digest=digest))

    def unload(self, key: str) -> None:
        """Once no request uses it: see ``unload_unused``."""
        self._unloading.add(key)

    def unload_unused(self) -> None:
        """To be called when requests may have ended."""
        if not self._unloading:
            return
        scheduler = self._scheduler
        users = (*scheduler.running, *scheduler.waiting, *scheduler.parked.values())
        in_use = {request.adapter for request in users}
        for key in self._unloading - in_use:
            self._unloading.remove(key)
            if self._runner.adapters is not None:
                self._runner.unload_adapter(key)
            scheduler.forget_adapter(key)
            self._send(AdapterDone(key))
