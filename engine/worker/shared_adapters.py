"""The adapters of all ranks of a model: rank 0 says what is held, dropped and put into slots, and all do the same."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from engine.layers.lora import AdapterBank, HostAdapter
from engine.messages import LoadAdapter, UnloadAdapter
from engine.parallel.ranks import Ranks
from engine.worker.rank_messages import DropAdapter


class SharedAdapters:
    def __init__(self, bank: AdapterBank, ranks: Ranks) -> None:
        """``bank``: this rank's."""
        self.bank = bank
        self._ranks = ranks
        self._threads = ThreadPoolExecutor(1, "adapters")
        """Disk → host, beside the steps."""
        self._fetched: dict[str, Future[HostAdapter]] = {}
        """On the other ranks: what rank 0 has read, and is still being read here."""

    def read(self, folder: Path) -> Future[HostAdapter]:
        """From the disk, in a thread. Its result may be ``InvalidRequest``."""
        return self._threads.submit(self.bank.read, folder)

    def hold(self, key: str, folder: Path, adapter: HostAdapter) -> None:
        """In host memory, from now on; the other ranks read it, too."""
        self.bank.hold(key, adapter)
        self._ranks.send(LoadAdapter(key, folder))

    def drop(self, key: str) -> None:
        """Out of host memory; a slot that has it keeps it."""
        self.bank.drop(key)
        self._ranks.send(DropAdapter(key))

    def unload(self, key: str) -> None:
        """Out of its slot and of host memory, wherever it is."""
        self.bank.unload(key)
        self._ranks.send(UnloadAdapter(key))

    def place(self, swaps: Sequence[tuple[int, str]]) -> None:
        """(slot, adapter), as a plan has them; the other ranks get the plan."""
        for slot, key in swaps:
            if (fetched := self._fetched.pop(key, None)) is not None:
                self.bank.hold(key, fetched.result())
            self.bank.place(slot, key)

    def follow(self, message: LoadAdapter | DropAdapter | UnloadAdapter) -> None:
        """What rank 0 has done."""
        key = message.key
        if isinstance(message, LoadAdapter):
            self._fetched[key] = self.read(message.folder)
            return
        self._fetched.pop(key, None)
        if isinstance(message, DropAdapter):
            self.bank.drop(key)
        else:
            self.bank.unload(key)
