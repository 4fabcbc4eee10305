"""Prefix caching: full KV blocks, found by the tokens that they were computed from.

Each full block has a key: a hash over its parent's key and its own tokens, so that a key stands for all tokens up to
the block's end (as in vLLM's automatic prefix caching, https://docs.vllm.ai/en/latest/design/prefix_caching.html).
A match counts only if the parent is the same block and the tokens are equal.

To find out from outside what an engine holds (``digest``), compute keys so:

    key of nothing   = blake2b-64(adapter's name in UTF-8, or nothing at all for the base model)
    key of a block   = blake2b-64(key of the blocks before it + its token ids as uint32, little-endian)

The first block that is not shared by all has its request's salt between the parent's key and its tokens: so blocks of
different salts have different keys from there on, and a request with another salt cannot find them.

where blake2b-64 is BLAKE2b with ``digest_size=8`` (RFC 7693) and a key is reported as an integer, little-endian. It
costs about a microsecond a block, and is computed once for each block that fills up or is looked up.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack

from engine.core.block_pool import BlockPool

_STRIDE = 16
"""Blocks looked up at a time: packing their tokens together halves the cost."""


def block_key(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(parent + tokens, digest_size=8).digest()


def _pack(tokens: Sequence[int]) -> bytes:
    return pack(f"<{len(tokens)}I", *tokens)


@dataclass(slots=True, eq=False)
class Node:
    """A full block and, through ``parent``, all blocks before it."""

    parent: Node | None
    key: bytes
    tokens: bytes
    """The block's own, uint32, after the salt if that begins here."""
    depth: int
    """Blocks from the start up to and including this one."""
    block: int
    adapter: str | None
    alive: bool = True
    """Whether it can be found. A parent lives at least as long as its children."""


class PrefixCache:
    """A holder of a block holds all blocks before it too, so blocks are evicted from the end of a chain.

    To that end, of two blocks computed from the same tokens at the same time the second is released, and its holder
    gets the first.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.block_size = block_size
        self._pool = pool
        pool.on_evict = self._evict
        self._roots: dict[str | None, Node] = {}
        self._nodes: dict[bytes, Node] = {}
        self._by_block: dict[int, Node] = {}
        self._ends: dict[bytes, Node] = {}
        """Where prompts and answers ended or diverged, last used last."""

    def __len__(self) -> int:
        return len(self._nodes)

    def root(self, adapter: str | None) -> Node:
        """The empty prefix of all prompts for the adapter."""
        root = self._roots.get(adapter)
        if root is None:
            key = block_key(b"", (adapter or "").encode())
            root = self._roots[adapter] = Node(None, key, b"", 0, -1, adapter)
        return root

    def match(self, known: Node, tokens: Sequence[int], salt: bytes = b"", shared: int = 0) -> Node:
        """The deepest cached block of ``tokens``, short of the last token, which is always computed.

        ``known``: a block of these tokens that was found before, or the root. Blocks evicted since are skipped, so that
        repeated look-ups cost only what has changed.
        ``salt`` begins at the first block that the first ``shared`` tokens do not fill.
        """
        size, limit = self.block_size, (len(tokens) - 1) // self.block_size
        node: Node | None = known
        while node is not None and (not node.alive or node.depth > limit):
            node = node.parent
        if node is None:
            node = self.root(known.adapter)
        for first in range(node.depth, limit, _STRIDE):
            packed = _pack(tokens[first * size : min(first + _STRIDE, limit) * size])
            for start in range(0, len(packed), 4 * size):
                own = packed[start : start + 4 * size]
                if salt and node.depth == shared // size:
                    own = salt + own
                found = self._nodes.get(block_key(node.key, own))
                if found is None or found.parent is not node or found.tokens != own:
                    return node
                node = found
        return node

    def unheld(self, node: Node) -> int:
        """How many of the blocks up to ``node`` have no holder: taking them reduces what is available."""
        count, holders = 0, self._pool.holders
        while node.parent is not None and holders(node.block) == 0:
            count += 1
            node = node.parent
        return count

    def take(self, node: Node) -> list[int]:
        """All blocks up to ``node``, with one reference more to each."""
        self.mark(node)
        blocks = []
        while node.parent is not None:
            blocks.append(node.block)
            node = node.parent
        blocks.reverse()
        self._pool.share(blocks)
        return blocks

    def extend(
        self,
        node: Node,
        tokens: Sequence[int],
        blocks: list[int],
        computed: int,
        salt: bytes = b"",
        shared: int = 0,
    ) -> Node:
        """Registers the blocks after ``node`` that the first ``computed`` of ``tokens`` fill; gives the last one.

        ``blocks`` is the holder's table; where a block is cached already, it replaces the holder's own.
        Stops at a key that another chain has, as only one of them can be found by it.
        """
        size = self.block_size
        for index in range(node.depth, computed // size if node.alive else 0):
            packed = _pack(tokens[index * size : (index + 1) * size])
            if salt and index == shared // size:
                packed = salt + packed
            key = block_key(node.key, packed)
            found = self._nodes.get(key)
            own = blocks[index]
            if found is None:
                found = Node(node, key, packed, index + 1, own, node.adapter)
                self._nodes[key] = self._by_block[own] = found
            elif found.parent is not node or found.tokens != packed:
                return node
            elif found.block != own:
                self._pool.share((found.block,))
                self._pool.release((own,))
                blocks[index] = found.block
            node = found
        return node

    def release(self, node: Node, blocks: Sequence[int], weight: float) -> None:
        """Releases a holder's ``blocks``; those up to ``node`` stay cached, if they are still registered."""
        depth = node.depth if node.alive else 0
        self._pool.release(blocks[depth:])
        self._pool.release(blocks[:depth], keep=True, weight=weight)

    def mark(self, node: Node) -> None:
        """A prompt or an answer ends here, or diverges from a cached one."""
        if node.alive and node.depth:
            self._ends.pop(node.key, None)
            self._ends[node.key] = node

    def digest(self, limit: int) -> list[tuple[int, int]]:
        """(key, tokens) of the most recently used prefixes, at most ``limit``: the ends of prompts and answers, and
        where prompts diverged from earlier ones. Looking up the key of each of a prompt's full blocks finds what the
        cache has of it."""
        ends = itertools.islice(reversed(self._ends.values()), limit)
        return [(int.from_bytes(node.key, "little"), node.depth * self.block_size) for node in ends]

    def forget(self, adapter: str | None) -> None:
        """Invalidates everything computed under this name, which may stand for other weights now."""
        root = self._roots.pop(adapter, None)
        if root is None:
            return
        root.alive = False
        for node in [node for node in self._nodes.values() if node.adapter == adapter]:
            if self._pool.is_cached(node.block):
                self._pool.discard(node.block)
            self._evict(node.block)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless keys, blocks and chains agree, and all cached blocks are registered."""
        if {id(node) for node in self._nodes.values()} != {id(node) for node in self._by_block.values()}:
            raise AssertionError("the registry by key and the one by block differ")
        for key, node in self._nodes.items():
            parent = node.parent
            if not node.alive or self._by_block.get(node.block) is not node:
                raise AssertionError(f"block {node.block} is registered for another")
            if parent is None or not parent.alive or node.depth != parent.depth + 1:
                raise AssertionError(f"block {node.block} has no live parent")
            if node.key != key or block_key(parent.key, node.tokens) != key:
                raise AssertionError(f"block {node.block} has a key that does not match its tokens")
            holders = self._pool.holders(node.block)
            if holders == 0 and not self._pool.is_cached(node.block):
                raise AssertionError(f"block {node.block} is free, yet registered")
            if parent.parent is not None and self._pool.holders(parent.block) < holders:
                raise AssertionError(f"block {node.block} has holders that do not hold its parent")
        registered = sum(self._pool.is_cached(block) for block in self._by_block)
        if registered != self._pool.cached:
            raise AssertionError(f"{self._pool.cached - registered} cached blocks are not registered")
        if any(self._nodes.get(key) is not node for key, node in self._ends.items()):
            raise AssertionError("the digest has a prefix that was evicted")

    def _evict(self, block: int) -> None:
        node = self._by_block.pop(block)
        node.alive = False
        del self._nodes[node.key]
        self._ends.pop(node.key, None)
