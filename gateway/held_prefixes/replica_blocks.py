"""What one replica holds, by its events: its hashes of blocks, and the keys that they stand for here.

A server's hash is opaque, and says nothing without the event that brought it. So each is remembered with its key, its
parent, and where the block lies. A block that was removed is remembered for a while: **who stores a block holds all
blocks before it at that time**, so each event about a child proves its ancestors, and heals what was missed or was
removed as one of two copies.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.held_prefixes.block_keys import adapter_key, block_key, number, packed, root_key
from gateway.held_prefixes.kv_events import GPU, Cleared, Event, Removed, Stored

MOST = 2**16
"""Blocks of a replica that are known at once: a million tokens in blocks of 16."""
SPARE = 2**12
"""Blocks that are known and not there, beyond as many as are there, before they are forgotten."""
_MEDIA = 16
"""Media that are told apart."""
_ADAPTERS = 256
_BLOCK_SIZES = range(1, 2**16)


class _Block:
    __slots__ = ("key", "media", "parent", "proven")

    def __init__(self, key: bytes, parent: int | None) -> None:
        self.key = key
        self.parent = parent
        self.media = 0
        """A bit for each medium on which it lies."""
        self.proven = -1
        """How many removals there had been when all before it were last known to be there."""


class ReplicaBlocks:
    """``put`` is called with the key of each block that comes, and says whether there was room for it; ``drop`` with
    that of each that goes."""

    def __init__(
        self,
        put: Callable[[int], bool],
        drop: Callable[[int], object],
        *,
        most: int = MOST,
        spare: int = SPARE,
    ) -> None:
        self._put = put
        self._drop = drop
        self._most = most
        self._spare = spare
        self._blocks: dict[int, _Block] = {}
        self._media: dict[str, int] = {}
        self._windowed: set[int] = set()
        """Groups of layers that see no whole prompt: what they hold is no prefix."""
        self._removals = 0
        self.held = 0
        """Blocks that are there."""
        self.unknown = 0
        """Blocks that came and could not be placed: after one that is not known, or for want of room."""
        self.block_size = 0
        """As its events have it; 0 before the first."""
        self.adapters: set[str] = set()
        """Of which it has told blocks."""

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, event: Event) -> None:
        """Raises ``OverflowError`` or ``TypeError`` where token ids are none."""
        match event:
            case Stored():
                self._stored(event)
            case Removed():
                self._removed(event)
            case Cleared():
                self.clear()

    def forget(self) -> None:
        """Something was missed: nothing is known to be there any more, until it is proven."""
        for block in self._blocks.values():
            self._leave(block, 0)
        self._removals += 1

    def clear(self) -> None:
        self.forget()
        self._blocks.clear()

    def close(self) -> None:
        """It is gone."""
        self.clear()
        for adapter in self.adapters:
            self._drop(adapter_key(adapter))
        self.adapters.clear()

    def _stored(self, event: Stored) -> None:
        medium = self._bit(event.medium)
        if not event.whole:
            self._windowed.add(event.group)
            return
        if not event.tokens:  # only copied: offloading tells no tokens
            for name in event.hashes:
                if (known := self._blocks.get(name)) is not None:
                    self._come(known, medium)
            return
        if event.block_size not in _BLOCK_SIZES:
            raise OverflowError(f"blocks of {event.block_size} tokens are not possible")
        key = self._parents_key(event)
        if key is None:
            self.unknown += len(event.hashes)
            return
        if event.block_size != self.block_size:
            if self.block_size:  # it was started again with other options
                self.clear()
                if event.parent is not None:
                    return
            self.block_size = event.block_size
        size, tokens, parent = 4 * event.block_size, packed(event.tokens), event.parent
        for index, name in enumerate(event.hashes):
            own = tokens[index * size : (index + 1) * size]
            if len(own) < size:
                break
            key = block_key(key, own, event.extras[index] if index < len(event.extras) else b"")
            known = self._blocks.get(name)
            if known is None or known.key != key:
                if known is not None:
                    self._leave(known, 0)
                elif not self._room():
                    self.unknown += len(event.hashes) - index
                    return
                known = self._blocks[name] = _Block(key, parent)
            if not self._come(known, medium):
                self.unknown += len(event.hashes) - index
                return
            parent = name

    def _parents_key(self, event: Stored) -> bytes | None:
        """None where that is not known."""
        if event.parent is None:
            if event.adapter is None:
                return None
            if event.adapter and event.adapter not in self.adapters and len(self.adapters) < _ADAPTERS:
                if not self._put(adapter_key(event.adapter)):
                    return None
                self.adapters.add(event.adapter)
            return root_key(event.adapter)
        known = self._blocks.get(event.parent)
        if known is None:
            return None
        if event.medium == GPU:  # what is offloaded may be there without what is before it
            self._prove(known)
        return known.key

    def _prove(self, block: _Block) -> None:
        """It is there, and so are all before it."""
        on_gpu = self._bit(GPU)
        one: _Block | None = block
        while one is not None and one.proven != self._removals:
            if not one.media and not self._come(one, on_gpu):
                return
            one.proven = self._removals
            one = self._blocks.get(one.parent) if one.parent is not None else None

    def _removed(self, event: Removed) -> None:
        if event.group in self._windowed:
            return
        medium = self._bit(event.medium)
        for name in event.hashes:
            if (known := self._blocks.get(name)) is not None and known.media & medium:
                self._leave(known, known.media & ~medium)
                self._removals += 1
        if len(self._blocks) > 2 * self.held + self._spare:
            self._purge()

    def _come(self, block: _Block, medium: int) -> bool:
        """Whether there is room for it."""
        if not block.media:
            if not self._put(number(block.key)):
                return False
            self.held += 1
        block.media |= medium
        return True

    def _leave(self, block: _Block, media: int) -> None:
        if block.media and not media:
            self._drop(number(block.key))
            self.held -= 1
        block.media = media

    def _room(self) -> bool:
        if len(self._blocks) >= self._most and self.held < len(self._blocks):
            self._purge()
        return len(self._blocks) < self._most

    def _purge(self) -> None:
        self._blocks = {name: block for name, block in self._blocks.items() if block.media}

    def _bit(self, medium: str) -> int:
        if medium not in self._media and len(self._media) < _MEDIA:
            self._media[medium] = 1 << len(self._media)
        return self._media.get(medium, 1 << _MEDIA)
