"""Blocks that are read by NIXL: over RDMA where there is some, else over TCP or shared memory by UCX.

Who gives says in its greeting how its host memory is reached; who asks reads each lent slot from there. What came is
held against its digest as always. The interface is that of https://github.com/ai-dynamo/nixl (``nixl._api``, 1.5).
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import StartupError
from engine.handover.arena import Arena
from engine.handover.wire import BrokenFrame

_POLL = 0.0005
"""Seconds between two looks at a read."""
_MEMORY = "DRAM"
"""In NIXL's words: a host's."""


class NixlAgent:
    """This process's, which has its arena registered. Threads may use it together."""

    def __init__(self, arena: Arena) -> None:
        """Raises ``StartupError`` where NIXL is not installed, or cannot be used."""
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as error:
            raise StartupError(
                f"--handover-transport nixl needs NIXL, which cannot be imported here ({error}): pip install nixl."
            ) from None
        self.block_bytes = arena.block_bytes
        self.base = np.frombuffer(arena.content(0), np.uint8).ctypes.data
        self._lock = threading.Lock()
        self._met: Counter[str] = Counter()
        """Other agents, by how many connections to them there are."""
        try:
            self._agent: Any = nixl_agent(f"tollgate-{uuid.uuid4().hex}", nixl_agent_config(backends=["UCX"]))
            self._agent.register_memory([(self.base, arena.slots * arena.block_bytes, 0, "")], _MEMORY)
        except Exception as error:  # NIXL's own errors have no common class
            raise StartupError(f"--handover-transport nixl cannot be used here: {error}.") from error

    def introduction(self) -> dict[str, object]:
        """For another engine's ``meet``."""
        return {"metadata": base64.b64encode(self._agent.get_agent_metadata()).decode(), "base": self.base}

    def meet(self, said: Mapping[str, Any]) -> NixlReader:
        """Raises ``BrokenFrame``."""
        try:
            metadata, base = base64.b64decode(said["metadata"], validate=True), int(said["base"])
            with self._lock:
                name = self._agent.add_remote_agent(metadata)
                name = name.decode() if isinstance(name, bytes) else str(name)
                self._met[name] += 1
        except Exception as error:
            raise BrokenFrame(f"NIXL cannot reach its memory: {error}") from None
        return NixlReader(self, name, base)

    def read(self, name: str, pairs: Sequence[tuple[int, int]], deadline: float) -> None:
        """(address there, address here) of blocks. Raises ``BrokenFrame``; after ``deadline``, by ``time.monotonic()``,
        only once nothing more is written."""
        size, agent = self.block_bytes, self._agent
        handle, late = None, False
        try:
            with self._lock:
                local = agent.get_xfer_descs([(here, size, 0) for _, here in pairs], _MEMORY)
                remote = agent.get_xfer_descs([(there, size, 0) for there, _ in pairs], _MEMORY)
                handle = agent.initialize_xfer("READ", local, remote, name)
                state = agent.transfer(handle)
            while state == "PROC":
                late = late or time.monotonic() > deadline
                time.sleep(_POLL)
                with self._lock:
                    state = agent.check_xfer_state(handle)
        except Exception as error:
            raise BrokenFrame(f"NIXL cannot read its memory: {error}") from None
        finally:
            if handle is not None:
                with self._lock:
                    agent.release_xfer_handle(handle)
        if late or state != "DONE":
            raise BrokenFrame("NIXL did not read its memory" + " in time" * late)

    def part(self, name: str) -> None:
        with self._lock:
            self._met[name] -= 1
            if not self._met[name]:
                del self._met[name]
                self._agent.remove_remote_agent(name)


class NixlReader:
    """Another engine's arena."""

    def __init__(self, agent: NixlAgent, name: str, base: int) -> None:
        self._agent, self._name, self._base = agent, name, base

    def copy(self, pairs: Sequence[tuple[int, int]], deadline: float) -> None:
        """(slot there, slot here). Raises ``BrokenFrame``."""
        size, here = self._agent.block_bytes, self._agent.base
        places = [(self._base + slot * size, here + own * size) for slot, own in pairs]
        self._agent.read(self._name, places, deadline)

    def close(self) -> None:
        self._agent.part(self._name)
