"""LoRA adapters loaded and unloaded while requests run, in the engine process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.adapter_memory import HostAdapters
from engine.core.adapter_slots import AdapterState
from engine.core.scheduler import Scheduler
from engine.messages import AdapterDone, Refusal

_NONE = "The engine was started without adapters: give it --max-adapters."


class AdapterLoading:
    def __init__(
        self, memory: HostAdapters | None, scheduler: Scheduler, send: Callable[[AdapterDone], None]
    ) -> None:
        self._memory = memory
        self._scheduler = scheduler
        self._send = send
        self._unloading: set[str] = set()
        """Adapters to be unloaded when the last request that uses them has ended."""

    def __contains__(self, key: str) -> bool:
        """Whether new requests may use it."""
        return self._memory is not None and key in self._memory and key not in self._unloading

    @property
    def reading(self) -> bool:
        """Whether one is read from the disk that requests wait for."""
        return self._memory is not None and self._memory.reading

    @property
    def state(self) -> AdapterState | None:
        slots, memory = self._scheduler.adapters, self._memory
        if slots is None or memory is None:
            return None
        waiting = sum(
            request.adapter is not None and request.adapter not in slots
            for request in self._scheduler.waiting
        )
        return AdapterState(
            len(slots), memory.held, memory.known, waiting, slots.hits, slots.swaps, memory.reads
        )

    def load(self, key: str, folder: Path) -> None:
        """In a thread: steps go on. ``tick`` says what came of it."""
        if self._memory is None:
            self._send(AdapterDone(key, _NONE))
        else:
            self._memory.load(key, folder)

    def tick(self) -> list[Refusal]:
        """Before each step: takes in what was read. Returns refusals of requests whose adapters cannot be read again:
        they have left the scheduler."""
        if self._memory is None:
            return []
        loaded, failed = self._memory.tick()
        for key, digest in loaded.items():
            self._send(AdapterDone(key, failed.pop(key, None), digest or ""))
        if not failed:
            return []
        refusals: list[Refusal] = []
        for request in list(self._scheduler.waiting):
            if request.adapter in failed:
                for number in (*(sibling.id for sibling in request.siblings), request.id):
                    self._scheduler.abort(number)
                    refusals.append(Refusal(number, "AdapterUnreadable", reason=failed[request.adapter]))
        return refusals

    def unload(self, key: str) -> None:
        """Once no request uses it: see ``unload_unused``."""
        self._unloading.add(key)

    def unload_unused(self) -> None:
        """To be called when requests may have ended."""
        if not self._unloading:
            return
        in_use = {request.adapter for request in self._scheduler.queues.by_id.values()}
        for key in self._unloading - in_use:
            self._unloading.remove(key)
            if self._memory is not None:
                self._memory.forget(key)
            self._scheduler.forget_adapter(key)
            self._send(AdapterDone(key))
