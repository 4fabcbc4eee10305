"""Which replicas hold which blocks: a hash table in a file that all workers of a gateway map into memory.

One worker writes. The others read without a lock, and nothing that they do can hold it up. A place in the table is
four words: a block's key, two words with a bit for each replica, and a check over the three. A reader that comes upon
a place half written finds a check that does not fit, and takes the block for unknown: it costs one request a cache hit
at most. As keys stand for all tokens before them, the table is the radix tree: a prompt's blocks are looked up from its
beginning, and a replica holds as many as are there in a row.

The writer says all the time that it is there. A worker that takes its place begins with a file of its own under the
same name; who reads the old one finds that nobody writes it any more, and opens the new one.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from gateway.held_prefixes.block_keys import number, root_key

PLACES = 2**19
"""Of 32 bytes each: 16 MiB."""
MOST_REPLICAS = 128
MAGIC = 0x746F6C6C68656C31  # another version's file is not read
HEADER = 4096
WORDS = struct.Struct("=4Q")
HEAD = struct.Struct("=QQQdQ")
"""Magic, places, the version of the list of replicas (odd while it changes), when the writer was there, blocks."""
REPLICA = struct.Struct("=QIf")
"""Its name's hash, its block size, 1 where its events come and none is missing."""
_ALL = 2**64 - 1

Clock = Callable[[], float]


def check_of(key: int, low: int, high: int) -> int:
    return (key * 3 + low * 5 + high * 7 + MAGIC) & _ALL


class TableWriter:
    """Raises ``OSError`` where the file cannot be made."""

    def __init__(self, path: Path, *, places: int = PLACES, clock: Clock = time.monotonic) -> None:
        if places & (places - 1):
            raise ValueError("the number of places should be a power of two")
        self._clock = clock
        self._places = places
        self._most = places // 2
        with NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}-", delete=False) as file:
            try:
                os.ftruncate(file.fileno(), HEADER + places * WORDS.size)
                self._map = mmap.mmap(file.fileno(), HEADER + places * WORDS.size)
                self._version = 0
                self.blocks = 0
                """That at least one replica holds."""
                self._replicas: dict[str, int] = {}
                self._told: dict[str, tuple[int, bool]] = {}
                self.beat()
                os.replace(file.name, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(file.name)
                raise

    def beat(self) -> None:
        """The writer is there."""
        HEAD.pack_into(self._map, 0, MAGIC, self._places, self._version, self._clock(), self.blocks)

    def add_replica(self, name: str) -> int | None:
        """Its place among them; None where there are too many."""
        taken = set(self._replicas.values())
        free = next((place for place in range(MOST_REPLICAS) if place not in taken), None)
        if free is not None:
            self._replicas[name] = free
            self.tell(name, 0, in_order=False)
        return free

    def remove_replica(self, name: str) -> None:
        """Its blocks have to be dropped before."""
        place = self._replicas.pop(name, None)
        self._told.pop(name, None)
        if place is not None:
            self._write_replica(place, 0, 0, 0.0)

    def tell(self, name: str, block_size: int, *, in_order: bool) -> None:
        """What its events say; ``in_order``: they come, and none is missing."""
        said = (block_size, in_order)
        if self._told.get(name) != said:
            self._told[name] = said
            self._write_replica(self._replicas[name], replica_key(name), block_size, float(in_order))

    def put(self, key: int, replica: int) -> bool:
        """Whether there was room for it."""
        at, low, high = self._find(key)
        if not (low or high):
            if self.blocks >= self._most:
                return False
            self.blocks += 1
        if replica < 64:
            low |= 1 << replica
        else:
            high |= 1 << replica - 64
        WORDS.pack_into(self._map, at, key, low, high, check_of(key, low, high))
        return True

    def drop(self, key: int, replica: int) -> None:
        at, low, high = self._find(key)
        if replica < 64:
            low &= ~(1 << replica)
        else:
            high &= ~(1 << replica - 64)
        if low or high:
            WORDS.pack_into(self._map, at, key, low, high, check_of(key, low, high))
        elif WORDS.unpack_from(self._map, at)[0] == key:
            self._empty(at)
            self.blocks -= 1

    def close(self) -> None:
        """What it wrote counts no more, from this moment on."""
        HEAD.pack_into(self._map, 0, MAGIC, self._places, self._version, -math.inf, 0)
        self._map.close()

    def _find(self, key: int) -> tuple[int, int, int]:
        """Where it stands, or would, and its words."""
        mask, place = self._places - 1, key & (self._places - 1)
        while True:
            at = HEADER + place * WORDS.size
            found, low, high, _ = WORDS.unpack_from(self._map, at)
            if found == key:
                return at, low, high
            if not found:
                return at, 0, 0
            place = (place + 1) & mask

    def _empty(self, at: int) -> None:
        """Those that follow move up where they may, so that no gap hides one from its first place."""
        mask = self._places - 1
        hole = (at - HEADER) // WORDS.size
        place = hole
        while True:
            place = (place + 1) & mask
            words = WORDS.unpack_from(self._map, HEADER + place * WORDS.size)
            if not words[0]:
                break
            home = words[0] & mask
            if (place - home) & mask >= (place - hole) & mask:
                WORDS.pack_into(self._map, HEADER + hole * WORDS.size, *words)
                hole = place
        WORDS.pack_into(self._map, HEADER + hole * WORDS.size, 0, 0, 0, 0)

    def _write_replica(self, place: int, name: int, block_size: int, in_order: float) -> None:
        self._version += 1
        self.beat()
        REPLICA.pack_into(self._map, HEAD.size + place * REPLICA.size, name, block_size, in_order)
        self._version += 1
        self.beat()


def replica_key(name: str) -> int:
    return number(root_key(f"\0replica {name}"))
