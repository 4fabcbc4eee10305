"""The giving side's connections: a thread each that hears, and one that sends. What they hear is for the engine's loop.

The loop alone knows the scheduler and the tiers; threads know a connection, and slots of host memory that the loop has
lent them.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from engine.handover.address import Address, listen
from engine.handover.arena import MEMORY, NIXL, Arena
from engine.handover.handshake import Fingerprint, answer
from engine.handover.nixl_agent import NixlAgent
from engine.handover.wire import INDEX, LENT, BrokenFrame, Kind, Wire, read_json

log = logging.getLogger("engine.handover")

_CONNECTIONS = 64
_HANDSHAKE = 5.0
"""Seconds."""
_SEND = 20
"""Seconds that the other side may read nothing, or say nothing before its host is asked whether it is there,"""
_PROBE, _PROBES = 5, 3
"""seconds from one such question to the next, and how many stay unanswered."""
_SILENCE = 10.0
"""Seconds between two lines of the log about peers that are refused."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A block to send. ``settle`` waits until its slot has its content."""

    index: int
    slot: int
    settle: Callable[[], None]


@dataclass(slots=True, eq=False)
class Peer:
    """One connection, as the loop has it."""

    wire: Wire
    orders: deque[Mapping[str, object]] = field(default_factory=deque)
    """Prompts that it asks for and the loop has not seen."""
    returned: deque[int] = field(default_factory=deque)
    """Slots that it has no more use for."""
    gone: bool = False
    """Set when the connection has ended, and no thread reads a slot for it any more."""
    read: deque[int] = field(default_factory=deque)
    """Slots that the other side reads in shared memory, in the order in which it was told of them."""
    out: queue.SimpleQueue[list[Piece] | dict[str, object] | None] = field(default_factory=queue.SimpleQueue)
    """What is to be sent; an empty list: that its prompt waits; ``None``: nothing more."""

    def give(self, pieces: list[Piece]) -> None:
        self.out.put(pieces)

    def reassure(self) -> None:
        """Its prompt waits, or is being computed."""
        self.out.put([])

    def end(self, cached: int = 0, refusal: str = "") -> None:
        """No more blocks of this prompt come. ``cached``: tokens of it that were there before it was asked for;
        ``refusal``: why there are none."""
        self.out.put({"cached": cached, "refusal": refusal})

    def close(self) -> None:
        self.wire.cut()


class Server:
    def __init__(
        self,
        address: Address,
        secret: bytes,
        fingerprint: Fingerprint,
        arena: Arena,
        ring: Callable[[], None],
        nixl: NixlAgent | None = None,
    ) -> None:
        """``ring`` is called when the loop has something to look at. Raises ``OSError``."""
        self._nixl = nixl
        self._secret, self._fingerprint, self._arena, self._ring = secret, fingerprint, arena, ring
        self._sock, self.address = listen(address)
        self._lock = threading.Lock()
        self._peers: list[Peer] = []
        self._greeting = 0
        """Connections that have not proven themselves yet."""
        self._complained = 0.0
        self._thread = threading.Thread(target=self._accept, name="handover-accept", daemon=True)
        self._thread.start()

    @property
    def peers(self) -> list[Peer]:
        with self._lock:
            return list(self._peers)

    def forget(self, peer: Peer) -> None:
        """It is gone, and has given all back."""
        with self._lock:
            self._peers.remove(peer)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        for peer in self.peers:
            peer.close()
        self._thread.join()
        if self.address.path:
            with suppress(FileNotFoundError):
                os.unlink(self.address.path)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return  # it was closed
            with self._lock:
                full = len(self._peers) + self._greeting >= _CONNECTIONS
                self._greeting += not full
            if full:
                self._complain(f"there are {_CONNECTIONS} connections already")
                sock.close()
                continue
            # A peer that reads nothing does not hold its slots for ever.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND, 0))
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A host that vanishes without a word does not keep its place for ever either.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SEND)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
            threading.Thread(target=self._hear, args=(Wire(sock),), name="handover-hear", daemon=True).start()

    def _hear(self, wire: Wire) -> None:
        peer = Peer(wire)
        try:
            shares = self._greet(wire)
            with self._lock:
                self._peers.append(peer)
        except (BrokenFrame, OSError) as error:
            self._complain(str(error))
            wire.close()
            return
        finally:
            with self._lock:
                self._greeting -= 1
        sender = threading.Thread(target=self._send, args=(peer, shares), name="handover-send", daemon=True)
        sender.start()
        try:
            while True:
                kind, body = wire.receive()
                if kind is Kind.PREFILL:
                    peer.orders.append(read_json(body))
                elif kind is Kind.RETURNED and len(body) == INDEX.size:
                    for _ in range(min(INDEX.unpack(body)[0], len(peer.read))):
                        peer.returned.append(peer.read.popleft())
                else:
                    raise BrokenFrame(f"{kind.name} came, which is of no use")
                self._ring()
        except BrokenFrame as error:
            log.debug("a connection has ended: %s", error)
        wire.cut()
        peer.out.put(None)
        sender.join()
        wire.close()
        peer.gone = True
        self._ring()

    def _greet(self, wire: Wire) -> bool:
        """Whether blocks are lent, for the other side to read where they lie. Raises ``BrokenFrame``, ``OSError``."""
        file = self._arena.shared_file
        offers: dict[str, Mapping[str, object]] = {}
        if self._nixl is not None:
            offers[NIXL] = self._nixl.introduction()
        if file is not None:
            offers[MEMORY] = {"bytes": self._arena.slots * self._arena.block_bytes}
        deadline = time.monotonic() + _HANDSHAKE
        chosen = answer(wire, self._secret, self._fingerprint, offers, deadline)
        wire.sock.settimeout(None)
        if chosen == MEMORY and file is not None:
            socket.send_fds(wire.sock, [b"\0"], [file])
        return chosen != ""

    def _send(self, peer: Peer, shares: bool) -> None:
        wire = peer.wire
        try:
            while (order := peer.out.get()) is not None:
                if isinstance(order, dict):
                    wire.say(Kind.END, **order)
                elif not order:
                    wire.say(Kind.WAITING)
                elif shares:
                    self._lend(peer, order)
                else:
                    for piece in order:
                        piece.settle()
                        wire.send(Kind.BLOCK, INDEX.pack(piece.index), self._arena.content(piece.slot))
                        peer.returned.append(piece.slot)
                    self._ring()
        except BrokenFrame as error:
            log.debug("a connection has ended: %s", error)
            wire.cut()

    def _lend(self, peer: Peer, pieces: list[Piece]) -> None:
        body = b""
        for piece in pieces:
            piece.settle()
            digest = peer.wire.content_digest(peer.wire.sends, self._arena.content(piece.slot))
            body += LENT.pack(piece.index, piece.slot, digest)
            peer.read.append(piece.slot)
        peer.wire.send(Kind.LENT, body)

    def _complain(self, why: str) -> None:
        now = time.monotonic()
        if now - self._complained >= _SILENCE:
            self._complained = now
            log.warning("an engine that asked for KV blocks was refused: %s", why)
