"""The asking side's connections: one for each prompt under way, with a thread, and kept for the next one."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.handover.address import Address, connect
from engine.handover.arena import Arena, Mapped
from engine.handover.handshake import Fingerprint, Unfit, ask
from engine.handover.wire import INDEX, LENT, BrokenFrame, CorruptFrame, Kind, Wire, read_json

log = logging.getLogger("engine.handover")

_CONNECT = 2.0
"""Seconds to connect and to greet."""
_IDLE = 8
"""Connections to one address that are kept while none is used."""


class Refused(Exception):
    """The other engine is well, and does not compute this prompt now."""


@dataclass(slots=True, eq=False)
class Transfer:
    """Blocks of one prompt. Its thread fills ``slots``; they are the loop's again once ``finished``."""

    address: str
    first: int
    slots: Sequence[int]
    """For the blocks from the ``first`` on."""
    began: float
    arrived: int = 0
    """How many of them are filled, in their order."""
    cached: int = 0
    """Tokens of the prompt that the other engine had before it was asked."""
    error: Exception | None = None
    finished: threading.Event = field(default_factory=threading.Event)
    cancelled: bool = False
    wire: Wire | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if (wire := self.wire) is not None:
            wire.cut()


@dataclass(frozen=True, slots=True)
class _Link:
    wire: Wire
    mapped: Mapped | None

    def close(self) -> None:
        self.wire.close()
        if self.mapped is not None:
            self.mapped.close()


class Links:
    def __init__(
        self,
        secret: bytes,
        fingerprint: Fingerprint,
        arena: Arena,
        ring: Callable[[], None],
        *,
        timeout: float,
    ) -> None:
        """``timeout``: seconds in which something has to come, if only that the prompt still waits. ``ring`` is called
        when a transfer is finished."""
        self._secret, self._fingerprint, self._arena, self._ring = secret, fingerprint, arena, ring
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Link]] = {}
        self._closed = False

    def start(self, address: Address, order: Mapping[str, Any], transfer: Transfer) -> None:
        settle = self._arena.settled()
        thread = threading.Thread(
            target=self._run, args=(address, order, transfer, settle), name="handover-fetch", daemon=True
        )
        thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links = [link for idle in self._idle.values() for link in idle]
            self._idle.clear()
        for link in links:
            link.close()

    def _run(
        self, address: Address, order: Mapping[str, Any], transfer: Transfer, settle: Callable[[], None]
    ) -> None:
        link: _Link | None = None
        try:
            settle()
            link = self._ordered(address, order, transfer)
            self._receive(link, transfer)
        except Refused as error:
            transfer.error = error
        except (BrokenFrame, OSError) as error:
            transfer.error = error
            if link is not None:
                link.close()
                link = None
        finally:
            transfer.wire = None
            if link is not None:
                self._keep(str(address), link)
            transfer.finished.set()
            self._ring()

    def _ordered(self, address: Address, order: Mapping[str, Any], transfer: Transfer) -> _Link:
        """A connection on which the prompt was asked for. One that was kept may have ended meanwhile."""
        while (link := self._kept(str(address))) is not None:
            if _alive(link.wire.sock):
                break
            link.close()
        link = link or self._connect(address)
        try:
            transfer.wire = link.wire
            if transfer.cancelled:
                raise BrokenFrame("nobody waits any more")
            link.wire.sock.settimeout(self._timeout)
            link.wire.say(Kind.PREFILL, **order)
        except BaseException:
            link.close()
            raise
        return link

    def _connect(self, address: Address) -> _Link:
        deadline = time.monotonic() + _CONNECT
        wire = Wire(connect(address, _CONNECT))
        try:
            size = ask(wire, self._secret, self._fingerprint, deadline)
            if not size:
                return _Link(wire, None)
            wire.sock.settimeout(_CONNECT)
            _, files, _, _ = socket.recv_fds(wire.sock, 1, 1)
            if not files:
                raise BrokenFrame("its shared memory did not come")
            return _Link(wire, Mapped(files[0], size))
        except BaseException:
            wire.close()
            raise

    def _receive(self, link: _Link, transfer: Transfer) -> None:
        wire, block_bytes = link.wire, self._arena.block_bytes

        def place(index: int) -> memoryview:
            return self._arena.content(self._slot(transfer, index))

        while True:
            kind, body = wire.receive(block_bytes, place, time.monotonic() + self._timeout)
            if kind is Kind.BLOCK:
                transfer.arrived += 1
            elif kind is Kind.LENT and link.mapped is not None:
                self._copy(link.mapped, wire, body, transfer)
            elif kind is Kind.END:
                said = read_json(body)
                if refusal := said.get("refusal"):
                    raise Refused(str(refusal))
                transfer.cached = int(str(said.get("cached", 0)))
                return
            elif kind is Kind.WAITING:
                continue
            else:
                raise CorruptFrame(f"{kind.name} came in place of blocks")

    def _copy(self, mapped: Mapped, wire: Wire, body: bytes, transfer: Transfer) -> None:
        size = self._arena.block_bytes
        for index, slot, digest in LENT.iter_unpack(body):
            content = self._arena.content(self._slot(transfer, index))
            # By NumPy, which lets other threads run meanwhile.
            np.copyto(np.frombuffer(content, np.uint8), np.frombuffer(mapped.content(slot, size), np.uint8))
            if wire.content_digest(wire.receives, content) != digest:
                raise CorruptFrame("a block in shared memory is not what was said")
            transfer.arrived += 1
        wire.send(Kind.RETURNED, INDEX.pack(len(body) // LENT.size))

    def _slot(self, transfer: Transfer, index: int) -> int:
        """Blocks come in their order."""
        if index != transfer.first + transfer.arrived or transfer.arrived >= len(transfer.slots):
            raise CorruptFrame(f"block {index} came, which was not its turn")
        return transfer.slots[transfer.arrived]

    def _kept(self, address: str) -> _Link | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _keep(self, address: str, link: _Link) -> None:
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if not self._closed and len(idle) < _IDLE:
                idle.append(link)
                return
        link.close()


def _alive(sock: socket.socket) -> bool:
    """Whether nothing came meanwhile, not even its end."""
    sock.setblocking(False)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def is_unfit(error: Exception | None) -> bool:
    return isinstance(error, Unfit)
