"""Subscribes to the KV events of all replicas, in a thread of its own, and keeps the table of what they hold.

A thread, since a batch of events costs some microseconds a block: the event loop answers requests meanwhile. ZeroMQ
connects again by itself, and says when it has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.held_prefixes.feed import Counts, Feed
from gateway.held_prefixes.kv_events import MOST_BYTES
from gateway.held_prefixes.replica_blocks import ReplicaBlocks
from gateway.held_prefixes.table import MOST_REPLICAS, TableWriter

if TYPE_CHECKING:
    import zmq

log = logging.getLogger(__name__)

_TURN = 100
"""Milliseconds between two looks at what is wanted, where no events come."""
_BEAT = 0.5
"""Seconds between two signs that the writer is there."""
_AT_ONCE = 256
"""Messages of a publisher before the next one's, or as many as are read in ``_SLICE`` seconds."""
_SLICE = 0.02
_QUEUE = 512
"""Messages that wait for the thread; the publisher drops what is more, which is a gap."""


class Publisher(NamedTuple):
    """Where a replica, or one of its data-parallel ranks, publishes its events."""

    endpoint: str
    """``tcp://HOST:PORT``."""
    topic: str = ""
    replay: str | None = None


class Figures(NamedTuple):
    """Of one publisher."""

    counts: Counts
    blocks: int
    unknown: int
    connected: bool


class _Line:
    """The sockets of one publisher."""

    def __init__(
        self, context: zmq.Context[Any], publisher: Publisher, blocks: ReplicaBlocks, place: int
    ) -> None:
        import zmq
        from zmq.utils.monitor import parse_monitor_message

        self._parse = parse_monitor_message
        self._again = zmq.Again
        self._noblock = zmq.NOBLOCK
        self._context = context
        self._publisher = publisher
        self._poller: zmq.Poller | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self.place = place
        self.feed = Feed(blocks, self._ask if publisher.replay is not None else None)
        self._events: zmq.Socket[bytes] = context.socket(zmq.SUB)
        self._events.linger = 0
        self._events.rcvhwm = _QUEUE
        self._events.reconnect_ivl, self._events.reconnect_ivl_max = 100, 5000
        # A host that is gone closes no connection.
        self._events.heartbeat_ivl, self._events.heartbeat_timeout = 2000, 6000
        self._events.ipv6 = True
        self._events.maxmsgsize = MOST_BYTES
        self._states: zmq.Socket[bytes] = self._events.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._up = zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._pollin = zmq.POLLIN
        self._dealer = zmq.DEALER
        self._events.subscribe(publisher.topic)
        self._events.connect(publisher.endpoint)

    def register(self, poller: zmq.Poller) -> None:
        self._poller = poller
        poller.register(self._events, self._pollin)
        poller.register(self._states, self._pollin)

    def is_among(self, ready: set[Any]) -> bool:
        return self._events in ready or self._states in ready or self._replay in ready

    def read(self) -> None:
        """What has come, up to a bound."""
        while (frames := self._receive(self._states)) is not None:
            if self._parse(frames)["event"] == self._up:
                self.feed.connect()
            else:
                self.feed.disconnect()
                self._hang_up()
        for _ in _slice():
            if (frames := self._receive(self._events)) is None:
                break
            self.feed.received(frames)
        for _ in _slice():
            if self._replay is None or (frames := self._receive(self._replay)) is None:
                break
            self.feed.repeated(frames)
        self.feed.look()
        if not self.feed.catching_up:
            self._hang_up()

    def close(self) -> None:
        self._hang_up()
        if self._poller is not None:
            self._poller.unregister(self._events)
            self._poller.unregister(self._states)
        self._events.disable_monitor()
        self._states.close(0)
        self._events.close(0)

    def _ask(self, sequence: int) -> None:
        self._hang_up()
        replay: zmq.Socket[bytes] = self._context.socket(self._dealer)
        replay.linger = 0
        replay.ipv6 = True
        replay.maxmsgsize = MOST_BYTES
        replay.connect(self._publisher.replay or "")
        replay.send_multipart((b"", sequence.to_bytes(8, "big")))
        self._replay = replay
        if self._poller is not None:
            self._poller.register(replay, self._pollin)

    def _hang_up(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            if self._poller is not None:
                self._poller.unregister(replay)
            replay.close(0)

    def _receive(self, socket: zmq.Socket[bytes]) -> list[bytes] | None:
        try:
            return socket.recv_multipart(self._noblock)
        except self._again:
            return None


class Subscriber:
    """``follow`` says whom to listen to; the rest is done by the thread, from ``start`` to ``close``."""

    def __init__(self, table: Path) -> None:
        """``table``: the file that other workers read."""
        self._path = table
        self._wanted: Mapping[str, Publisher] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.figures: Mapping[str, Figures] = {}
        """By name; replaced twice a second."""

    def follow(self, publishers: Mapping[str, Publisher]) -> None:
        """By name: these, and no others. Nothing is connected before this returns."""
        self._wanted = dict(publishers)

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv events", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Returns when the thread has ended."""
        self._ending.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._listen()
            except Exception:
                log.exception("KV events cannot be followed; it is tried again")
                self._ending.wait(1.0)

    def _listen(self) -> None:
        import zmq

        table = TableWriter(self._path)
        lines: dict[str, tuple[Publisher, _Line]] = {}
        context: zmq.Context[Any] = zmq.Context()
        poller = zmq.Poller()
        followed: Mapping[str, Publisher] = {}
        beat = 0.0
        try:
            while not self._ending.is_set():
                if followed is not (wanted := self._wanted):
                    self._change(table, lines, wanted, context, poller)
                    followed = wanted
                ready = {socket for socket, _ in poller.poll(_TURN)}
                late = (now := time.monotonic()) - beat >= _BEAT
                for name, (_, line) in lines.items():
                    if late or line.is_among(ready):
                        line.read()
                        table.tell(name, line.feed.blocks.block_size, in_order=line.feed.connected)
                if late:
                    beat = now
                    self._tell(table, lines)
        finally:
            for _, line in lines.values():
                line.close()
            context.destroy(0)
            table.close()

    def _change(
        self,
        table: TableWriter,
        lines: dict[str, tuple[Publisher, _Line]],
        wanted: Mapping[str, Publisher],
        context: zmq.Context[Any],
        poller: zmq.Poller,
    ) -> None:
        for name in [name for name, (publisher, _) in lines.items() if wanted.get(name) != publisher]:
            _, line = lines.pop(name)
            line.close()
            line.feed.blocks.close()
            table.remove_replica(name)
        for name, publisher in wanted.items():
            if name in lines:
                continue
            place = table.add_replica(name)
            if place is None:
                log.error(
                    "the KV events of '%s' are not followed: %d replicas are the most", name, MOST_REPLICAS
                )
                continue
            line = _Line(context, publisher, _blocks(table, place), place)
            line.register(poller)
            lines[name] = publisher, line

    def _tell(self, table: TableWriter, lines: Mapping[str, tuple[Publisher, _Line]]) -> None:
        table.beat()
        self.figures = {
            name: Figures(
                line.feed.counts, line.feed.blocks.held, line.feed.blocks.unknown, line.feed.connected
            )
            for name, (_, line) in lines.items()
        }


def _slice() -> Iterator[None]:
    """Once for each message that may be read: who floods is not heard in place of the others."""
    end = time.monotonic() + _SLICE
    for _ in range(_AT_ONCE):
        yield
        if time.monotonic() > end:
            return


def _blocks(table: TableWriter, place: int) -> ReplicaBlocks:
    return ReplicaBlocks(lambda key: table.put(key, place), lambda key: table.drop(key, place))
