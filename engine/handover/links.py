"""The asking side's connections: one for each prompt under way, with a thread, and kept for the next one."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.handover.address import Address, connect
from engine.handover.arena import MEMORY, NIXL, Arena, Carrier, Mapped
from engine.handover.handshake import Fingerprint, Unfit, ask
from engine.handover.nixl_agent import NixlAgent
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
    heard: float
    """When the other engine last said something, or was asked."""
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
    carrier: Carrier | None

    def close(self) -> None:
        self.wire.close()
        if self.carrier is not None:
            self.carrier.close()


class Links:
    def __init__(
        self,
        secret: bytes,
        fingerprint: Fingerprint,
        arena: Arena,
        ring: Callable[[], None],
        *,
        timeout: float,
        nixl: NixlAgent | None = None,
    ) -> None:
        """``timeout``: seconds in which something has to come, if only that the prompt still waits. ``ring`` is called
        when a transfer is finished."""
        self._secret, self._fingerprint, self._arena, self._ring = secret, fingerprint, arena, ring
        self.timeout = timeout
        self._nixl = nixl
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
        except (BrokenFrame, OSError, ValueError, struct.error) as error:
            # The last two: what came has its digest, and makes no sense.
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
            link.wire.sock.settimeout(self.timeout)
            link.wire.say(Kind.PREFILL, **order)
        except BaseException:
            link.close()
            raise
        return link

    def _connect(self, address: Address) -> _Link:
        deadline = time.monotonic() + _CONNECT
        wire = Wire(connect(address, _CONNECT))
        try:
            carriers = [NIXL] if self._nixl is not None else []
            if wire.sock.family == socket.AF_UNIX:
                carriers.append(MEMORY)
            said = ask(wire, self._secret, self._fingerprint, carriers, deadline)
            return _Link(wire, self._carrier(wire, said))
        except BaseException:
            wire.close()
            raise

    def _carrier(self, wire: Wire, said: Mapping[str, Any]) -> Carrier | None:
        """What the other side has chosen. Raises ``BrokenFrame``."""
        match said.get("carrier"):
            case "":
                return None
            case "nixl" if self._nixl is not None:
                return self._nixl.meet(said)
            case "memory":
                wire.sock.settimeout(_CONNECT)
                _, files, _, _ = socket.recv_fds(wire.sock, 1, 1)
                if not files:
                    raise BrokenFrame("its shared memory did not come")
                return Mapped(files[0], int(str(said.get("bytes"))), self._arena)
        raise BrokenFrame(f"its blocks come by {said.get('carrier')!r}, which this engine does not know")

    def _receive(self, link: _Link, transfer: Transfer) -> None:
        wire, block_bytes = link.wire, self._arena.block_bytes

        def place(index: int) -> memoryview:
            return self._arena.content(self._slot(transfer, index))

        while True:
            kind, body = wire.receive(block_bytes, place, time.monotonic() + self.timeout)
            transfer.heard = time.monotonic()
            if kind is Kind.BLOCK:
                transfer.arrived += 1
            elif kind is Kind.LENT and link.carrier is not None:
                self._copy(link.carrier, wire, body, transfer)
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

    def _copy(self, carrier: Carrier, wire: Wire, body: bytes, transfer: Transfer) -> None:
        lent = list(LENT.iter_unpack(body))
        owns = [self._slot(transfer, index, ahead) for ahead, (index, _, _) in enumerate(lent)]
        pairs = [(slot, own) for (_, slot, _), own in zip(lent, owns, strict=True)]
        carrier.copy(pairs, time.monotonic() + self.timeout)
        for (_, _, digest), own in zip(lent, owns, strict=True):
            if wire.content_digest(wire.receives, self._arena.content(own)) != digest:
                raise CorruptFrame("a block is not what was said of it")
            transfer.arrived += 1
        wire.send(Kind.RETURNED, INDEX.pack(len(lent)))

    def _slot(self, transfer: Transfer, index: int, ahead: int = 0) -> int:
        """Blocks come in their order. ``ahead``: how many others come at the same time, before it."""
        place = transfer.arrived + ahead
        if index != transfer.first + place or place >= len(transfer.slots):
            raise CorruptFrame(f"block {index} came, which was not its turn")
        return transfer.slots[place]

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
