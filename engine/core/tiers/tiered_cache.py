"""Blocks of the prefix cache in host memory and on disk, found again when the device has evicted them.

Each full block is copied to host memory as soon as it is computed, and from there to the disk, as fast as that goes: a
long prompt may evict hundreds of blocks at once, and none of them has to be waited for. So a tier has what the tiers
above it have, as far as it has room, and evicts by the same order (``eviction.py``).

A block's key in the tiers is a hash of all tokens up to its end, the adapter and the salt, as in ``prefix_cache.py``
but of 128 bits: no two blocks are compared by their tokens here, and what is on disk outlives its process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b

from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import Node, PrefixCache
from engine.core.request import Request
from engine.core.tiers.copier import Copied, Copier
from engine.core.tiers.evicted_ends import EvictedEnds
from engine.core.tiers.loans import Loans
from engine.core.tiers.tier import Tier

_MOST_UNORDERED = 256
"""Chains that wait until they are written; of those before them the order stays as it was written."""


@dataclass(frozen=True, slots=True)
class TierSet:
    """What there is beyond the device."""

    host: Tier
    disk: Tier | None
    copier: Copier


@dataclass(frozen=True, slots=True)
class TierState:
    """Blocks in the tiers now, and those copied since the start."""

    host: int = 0
    disk: int = 0
    saved: int = 0
    """To host memory,"""
    written: int = 0
    """and from there to the disk."""
    loaded: int = 0
    """From host memory to the device, those read before included,"""
    read: int = 0
    """and from the disk to host memory."""
    corrupt: int = 0
    """Read, and refused as they were not what was written."""
    unwritten: int = 0
    """That could not be written, as the disk is full, or fails."""


@dataclass(slots=True)
class _Counts:
    saved: int = 0
    written: int = 0
    loaded: int = 0
    read: int = 0
    corrupt: int = 0
    unwritten: int = 0


class TieredCache:
    def __init__(self, pool: BlockPool, prefixes: PrefixCache, tiers: TierSet) -> None:
        self._pool = pool
        self.host = tiers.host
        self.disk = tiers.disk
        self.copier = tiers.copier
        self.loans = Loans(tiers.host)
        self._counts = _Counts()
        self._prefixes = prefixes
        self._fresh: list[tuple[Node, float]] = []
        """Blocks that are full, and not saved yet."""
        self._unwritten: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Of blocks in host memory that are to be written: depth and weight."""
        self._writing: dict[bytes, float] = {}
        self._reading: dict[bytes, float] = {}
        """By key: weights of those under way."""
        self._generations: dict[str, int] = {}
        """Of adapters' weights."""
        self._unordered: OrderedDict[bytes, tuple[list[bytes], float]] = OrderedDict()
        """By their last key: chains that were used, and are not on disk up to their end yet; with their weight."""
        self._evicted = EvictedEnds()
        prefixes.on_evict_end = lambda node: self._evicted.add(self._key(node), node)

    @property
    def state(self) -> TierState:
        disk = len(self.disk) if self.disk is not None else 0
        return TierState(len(self.host), disk, **asdict(self._counts))

    @property
    def busy(self) -> bool:
        """Whether copies are under way or to come."""
        return bool(self._writing or self._reading or self._fresh or self._unwritten)

    # What the device has

    def learned(self, node: Node, depth: int, weight: float) -> None:
        """The blocks after ``depth`` up to ``node`` are full, and cached on the device."""
        found = []
        while node.parent is not None and node.depth > depth:
            found.append((node, weight))
            node = node.parent
        self._fresh += reversed(found)

    def used(self, node: Node, weight: float) -> None:
        """A request that held the blocks up to ``node`` let go of them."""
        self.save()
        if node.alive:
            keys = self._keys_to(node)
            self.host.touch(keys, weight)
            if self.disk is not None and keys:
                self.disk.touch(keys, weight)
                if node.adapter is None and keys[-1] not in self.disk:
                    # Written one by one, the first of a chain would be evicted first, and nobody find the others.
                    self._unordered[keys[-1]] = keys, weight
                    if len(self._unordered) > _MOST_UNORDERED:
                        self._unordered.popitem(last=False)

    def forget(self, adapter: str) -> None:
        """What was computed under this name is found no longer."""
        self._generations[adapter] = self._generations.get(adapter, 0) + 1
        self._evicted.forget(adapter)

    def save(self) -> None:
        """Copies to host memory what was computed since the last call."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        pairs: list[tuple[int, int]] = []
        entries: dict[float, list[tuple[bytes, int]]] = {}
        for node, weight in fresh:
            if not node.alive:
                continue
            key = self._key(node)
            if key in self.host or key in self._reading:
                continue
            slot = self.host.reserve()
            if slot is None:
                break
            pairs.append((node.block, slot))
            entries.setdefault(weight, []).append((key, slot))
            if self.disk is not None and node.adapter is None and key not in self.disk:
                # An adapter's weights are not known by anything that outlives this process.
                self._unwritten[key] = node.depth, weight
                if len(self._unwritten) > self.host.pool.total:
                    # The disk is slower than what is computed: the oldest is not in host memory any more, or soon.
                    self._unwritten.popitem(last=False)
        if pairs:
            self.copier.save(pairs)
            self._counts.saved += len(pairs)
        for weight, own in entries.items():
            self.host.keep(own, weight)

    def digest(self, limit: int) -> list[tuple[int, int, str]]:
        """As ``PrefixCache.digest``, of prefixes that the device has evicted, at most ``limit``; and where their last
        block is, ``host`` or ``disk``: those before it are there too, or nearer, as a chain is evicted from its end. Of
        one that has come back since the tier is ``""``."""
        found = self._evicted.found(self._tier_of, limit)
        return [(key, blocks * self._prefixes.block_size, tier) for key, blocks, tier in found]

    def _tier_of(self, key: bytes, on_device: bytes) -> str | None:
        if on_device in self._prefixes:
            return ""
        if key in self.host:
            return "host"
        return "disk" if key in self._reading or (self.disk is not None and key in self.disk) else None

    # What comes back

    def missing(self, request: Request, node: Node) -> list[tuple[bytes, bool]]:
        """Blocks of the request's tokens after ``node`` that a tier has: key, and whether it is in host memory."""
        found: list[tuple[bytes, bool]] = []
        for key in self._keys_after(node, request):
            here = key in self.host
            if not here and (self.disk is None or key not in self.disk) and key not in self._reading:
                break
            found.append((key, here))
        return found

    def fetch(self, keys: list[bytes], weight: float) -> set[bytes]:
        """Begins to read from the disk those that are not in host memory; gives those that are to be awaited."""
        awaited: set[bytes] = set()
        for key in keys:
            if key in self.host:
                continue
            if key not in self._reading:
                if self.disk is None or key not in self.disk:
                    break
                slot = self.host.reserve()
                if slot is None:
                    break
                self._reading[key] = weight
                self._unwritten.pop(key, None)
                self.copier.read(key, self.disk.hold(key), slot)
            awaited.add(key)
        return awaited

    def keys(self, request: Request, node: Node) -> list[bytes]:
        """Of the full blocks of the request's tokens after ``node``, short of the last token."""
        return list(self._keys_after(node, request))

    def offer(self, request: Request) -> None:
        """Copies to host memory what the device has of the request's tokens, where it is there no longer."""
        prefixes = self._prefixes
        found = prefixes.match(prefixes.root(request.adapter), request.tokens, request.salt, request.shared)
        self.learned(found, 0, request.weight)
        self.save()

    def is_reading(self, key: bytes) -> bool:
        return key in self._reading

    def load(self, request: Request, known: Node, keys: list[bytes], most: int) -> int:
        """Copies to the device at most ``most`` of the request's blocks after ``known``, whose ``keys`` these are,
        those that it has by now left out: they are cached there as if some request had computed them. Returns how
        many."""
        prefixes, size, first = self._prefixes, self._prefixes.block_size, known.depth
        if not known.alive:
            return 0
        node = prefixes.match(known, request.tokens, request.salt, request.shared)
        slots: list[int] = []
        for key in keys[node.depth - first :]:
            slot = self.host.find(key)
            if slot is None or len(slots) == most:
                break
            slots.append(slot)
        if not slots:
            return 0
        # Held until they are registered: what is allocated may evict what is cached.
        table = prefixes.take(node)
        del slots[self._pool.available :]
        blocks = self._pool.allocate(len(slots))
        if blocks:
            self.copier.load(list(zip(slots, blocks, strict=True)))
            self._counts.loaded += len(blocks)
        table += blocks
        computed = len(table) * size
        end = prefixes.extend(node, request.tokens, table, computed, request.salt, request.shared)
        prefixes.release(end, table, request.weight)
        return len(blocks)

    def tick(self) -> None:
        """Saves what is new, begins to write what is not on disk yet, and takes in what was copied."""
        self._take_in()
        self.save()
        self._write()

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless slots, keys and copies under way agree in every tier."""
        copying = {*self._writing, *self._reading}
        if len(copying) != len(self._writing) + len(self._reading):
            raise AssertionError("a block is read and written at once")
        if any(key not in self.host for key in self._writing):
            raise AssertionError("a block is written that is not in host memory")
        held = {self.host.find(key) for key in self._writing} | self.loans.lent.keys()
        self.host.check_integrity(len(held) + len(self._reading) + len(self.loans.reserved))
        if any(key in self.host for key in self._reading):
            raise AssertionError("a block is read that is in host memory")
        if self.disk is not None:
            self.disk.check_integrity(len(copying))
        elif copying:
            raise AssertionError("there is no disk to copy to")

    def _write(self) -> None:
        if self.disk is None:
            return
        # What is being written cannot be evicted: room is left for what comes.
        room = max(1, self.host.pool.total // 4) - len(self._writing)
        while self._unwritten and room > 0:
            key, (depth, weight) = self._unwritten.popitem(last=False)
            if key in self.disk or key not in self.host or key in self._writing:
                continue
            place = self.disk.reserve()
            if place is None:
                self._unwritten[key] = depth, weight
                return
            self._writing[key] = weight
            self.copier.write(key, self.host.hold(key), place, depth)
            room -= 1

    def _take_in(self) -> None:
        for done in self.copier.copied():
            if self.disk is None:
                continue
            if done.read:
                self._was_read(done, self.disk)
                continue
            weight = self._writing.pop(done.key)
            self.host.let_go(done.slot, weight)
            if done.good:
                self.disk.keep([(done.key, done.place)], weight)
                self._counts.written += 1
                if (chain := self._unordered.pop(done.key, None)) is not None:
                    self.disk.touch(*chain)
            else:
                self.disk.give_back(done.place)
                self._counts.unwritten += 1

    def _was_read(self, done: Copied, disk: Tier) -> None:
        weight = self._reading.pop(done.key)
        if done.good:
            self.host.keep([(done.key, done.slot)], weight)
            disk.let_go(done.place, weight)
            self._counts.read += 1
        else:
            self.host.give_back(done.slot)
            disk.drop(done.key)
            disk.let_go(done.place, weight)
            self._counts.corrupt += 1

    # Keys

    def _key(self, node: Node) -> bytes:
        """Of all that ``node`` stands for; kept in it."""
        missing: list[Node] = []
        while node.parent is not None and not node.tier_key:
            missing.append(node)
            node = node.parent
        key = node.tier_key or self._root_key(node.adapter)
        for node in reversed(missing):
            key = node.tier_key = _key_after(key, node.tokens)
        return key

    def _root_key(self, adapter: str | None) -> bytes:
        generation = self._generations.get(adapter, 0) if adapter is not None else 0
        return _key_after(b"", f"{generation} {adapter}".encode() if adapter is not None else b"")

    def _keys_to(self, node: Node) -> list[bytes]:
        self._key(node)
        keys = []
        while node.parent is not None:
            keys.append(node.tier_key)
            node = node.parent
        return keys[::-1]

    def _keys_after(self, node: Node, request: Request) -> Iterator[bytes]:
        """Of the full blocks of the request's tokens, short of the last token."""
        key = self._key(node)
        for own in self._prefixes.contents(node.depth, request.tokens, request.salt, request.shared):
            key = _key_after(key, own)
            yield key


def _key_after(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(parent + tokens, digest_size=16).digest()
