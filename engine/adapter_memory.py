"""LoRA adapters in host memory: read from the disk beside the steps, dropped when others are wanted.

An adapter is known by what its files had when it was loaded: where it has to be read again, and they have changed, its
requests are refused, as their answers and cached prefixes would be another's.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.core.adapter_slots import AdapterSlots
from engine.errors import InvalidRequest

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.layers.lora import HostAdapter
    from engine.worker.runner import Runner
    from engine.worker.shared_adapters import SharedAdapters

log = logging.getLogger("engine.process")

_UNREADABLE = "It cannot be read; the engine's log has the details."
_CHANGED = (
    "its files are gone, or are not those that were loaded; the engine's log says which. Load it again."
)


@dataclass(frozen=True, slots=True)
class _Known:
    folder: Path
    digest: str


class HostAdapters:
    """``AdapterMemory`` of ``engine/core/adapter_slots.py``."""

    def __init__(self, shared: SharedAdapters, most: int, ring: Callable[[], None] = lambda: None) -> None:
        """``ring`` is called, in a thread, when ``tick`` has something to do."""
        self.most = most
        self.reads = 0
        """Adapters that were read again."""
        self._shared = shared
        self._ring = ring
        self._known: dict[str, _Known] = {}
        self._held: OrderedDict[str, None] = OrderedDict()
        """Last wanted last."""
        self._reading: dict[str, Future[HostAdapter]] = {}
        self._spared: set[str] = set()
        """What was wanted last."""
        self._loading: dict[str, tuple[Path, Future[HostAdapter]]] = {}
        """Those that are not known yet."""

    @property
    def known(self) -> int:
        return len(self._known)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def reading(self) -> bool:
        """Whether there is anything to come."""
        return bool(self._reading or self._loading)

    def __contains__(self, key: str) -> bool:
        """Whether requests can ask for it."""
        return key in self._known

    def has(self, key: str) -> bool:
        return key in self._held

    def want(self, keys: Sequence[str], keep: Collection[str]) -> None:
        for key in reversed(keys):
            if key in self._held:
                self._held.move_to_end(key)
        self._spared = {*keys, *keep}
        for key in keys:
            if key in self._held or key in self._reading or key not in self._known:
                continue
            self._make_room()
            if len(self._held) + len(self._reading) >= self.most:
                return
            self._reading[key] = self._read(self._known[key].folder)

    def load(self, key: str, folder: Path) -> None:
        """For the first time: ``tick`` tells what came of it."""
        self._loading[key] = folder, self._read(folder)

    def start(self, key: str, folder: Path, digest: str) -> None:
        """One that the runner has loaded at its start."""
        self._known[key] = _Known(folder, digest)
        if key in self._shared.bank.held:
            self._held[key] = None

    def forget(self, key: str) -> None:
        """It is unloaded."""
        self._known.pop(key, None)
        self._held.pop(key, None)
        self._reading.pop(key, None)
        self._shared.unload(key)

    def tick(self) -> tuple[dict[str, str | None], dict[str, str]]:
        """Takes in what was read since. Of adapters loaded for the first time: the digest, or ``None`` and the reason
        in the second; which also has why known ones could not be read again."""
        loaded: dict[str, str | None] = {}
        failed: dict[str, str] = {}
        for key, (folder, future) in list(self._loading.items()):
            if not future.done():
                continue
            del self._loading[key]
            adapter, loaded[key] = self._result(future, folder, key, failed), None
            if adapter is not None:
                loaded[key] = adapter.digest
                self._known[key] = _Known(folder, adapter.digest)
                self._make_room()
                if len(self._held) + len(self._reading) < self.most:
                    self._hold(key, folder, adapter)
        for key, future in list(self._reading.items()):
            if not future.done():
                continue
            del self._reading[key]
            known = self._known[key]
            why: dict[str, str] = {}
            adapter = self._result(future, known.folder, key, why)
            if adapter is not None and adapter.digest == known.digest:
                self.reads += 1
                self._hold(key, known.folder, adapter)
            else:
                # Paths are for who runs the engine, not for whoever asks.
                log.error("adapter %s in %s: %s", key, known.folder, why.get(key, "its files have changed"))
                failed[key] = _CHANGED
        return loaded, failed

    def _read(self, folder: Path) -> Future[HostAdapter]:
        future = self._shared.read(folder)
        future.add_done_callback(lambda _: self._ring())
        return future

    def _result(
        self, future: Future[HostAdapter], folder: Path, key: str, failed: dict[str, str]
    ) -> HostAdapter | None:
        try:
            return future.result()
        except InvalidRequest as error:
            failed[key] = error.message
        except Exception:
            # Whatever is wrong with a folder must not end the requests that run.
            log.exception("an adapter could not be read from %s", folder)
            failed[key] = _UNREADABLE
        return None

    def _hold(self, key: str, folder: Path, adapter: HostAdapter) -> None:
        self._held[key] = None
        self._shared.hold(key, folder, adapter)

    def _make_room(self) -> None:
        """For one more, if there is one that nobody wants."""
        while len(self._held) + len(self._reading) >= self.most:
            key = next((key for key in self._held if key not in self._spared), None)
            if key is None:
                return
            del self._held[key]
            self._shared.drop(key)


def open_adapters(
    config: EngineConfig, runner: Runner, ring: Callable[[], None] = lambda: None
) -> tuple[HostAdapters, AdapterSlots] | None:
    """With what the runner has loaded; ``None`` without slots."""
    shared = runner.shared_adapters
    if shared is None:
        return None
    memory = HostAdapters(shared, config.host_adapters, ring)
    for key, folder in config.adapters:
        memory.start(key, folder, runner.adapter_digests[key])
    slots = [key for key, _ in config.adapters if key in shared.bank.loaded]
    return memory, AdapterSlots(shared.bank.max_slots, memory, slots)
