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

Where layers are in several groups, a node has a block in each. Layers that see all tokens need the blocks of the whole
prefix; through a sliding window only the last ones are seen, so a prefix can be used where these are there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import pack

from engine.core.block_demand import BlockDemand
from engine.core.block_pool import GONE, BlockPool

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
    """In the first group of layers."""
    adapter: str | None
    alive: bool = True
    """Whether it can be found. A parent lives at least as long as its children."""
    others: list[int] = field(default_factory=list)
    """In the other groups, where there are several."""
    children: int = 0
    """Nodes that follow it, and are alive."""
    tier_key: bytes = b""
    """Where there are further tiers of memory (``engine/core/tiers``), its key in them, once it was asked for."""


class PrefixCache:
    """A holder of a block holds all blocks before it too, so blocks are evicted from the end of a chain: with a node's
    block in one group those in the others go, too. Blocks of sliding windows are evicted one by one, and their node
    stays, where no group sees all tokens as long as another node follows it.

    To that end, of two blocks computed from the same tokens at the same time the second is released, and its holder
    gets the first.
    """

    def __init__(self, pool: BlockPool, block_size: int, demand: BlockDemand | None = None) -> None:
        """``demand``: of the groups of layers; ``None``: one that sees all tokens."""
        self.block_size = block_size
        self._pool = pool
        self._demand = demand or BlockDemand(block_size=block_size)
        self._full = self._demand.full
        pool.on_evict = self._evict
        self._roots: dict[str | None, Node] = {}
        self._nodes: dict[bytes, Node] = {}
        self._by_block: dict[int, Node] = {}
        self._ends: dict[bytes, Node] = {}
        """Where prompts and answers ended or diverged, last used last."""
        self._halves: dict[bytes, Node] = {}
        """By parent's key and first half of the tokens: a node that begins so."""
        self.on_evict_end: Callable[[Node], None] | None = None
        """Called with each of these that is evicted, while it is still registered."""
        self.has_state: Callable[[Node], bool] | None = None
        """Where layers keep a state: whether that after a block is there."""
        self.united = 0
        """How often a holder's block was replaced by one that was cached already."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._nodes

    def root(self, adapter: str | None) -> Node:
        """The empty prefix of all prompts for the adapter."""
        root = self._roots.get(adapter)
        if root is None:
            key = block_key(b"", (adapter or "").encode())
            root = self._roots[adapter] = Node(None, key, b"", 0, GONE, adapter)
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

    def contents(
        self, depth: int, tokens: Sequence[int], salt: bytes = b"", shared: int = 0
    ) -> Iterator[bytes]:
        """What ``Node.tokens`` is of each full block of ``tokens`` after the first ``depth``, short of the last
        token."""
        size = self.block_size
        for index in range(depth, (len(tokens) - 1) // size):
            own = _pack(tokens[index * size : (index + 1) * size])
            yield salt + own if salt and index == shared // size else own

    def partial(
        self, node: Node, tokens: Sequence[int], salt: bytes = b"", shared: int = 0
    ) -> tuple[int, int]:
        """A block that begins as ``tokens`` go on after ``node``, and how many tokens it has in common with them: half
        a block at least, the last of ``tokens`` not counted; 0 if there is none."""
        size, start = self.block_size, node.depth * self.block_size
        half = -(-size // 2)
        most = min(size, len(tokens) - 1 - start)
        if most < half or half == size:
            return GONE, 0
        own = _pack(tokens[start : start + most])
        before = len(salt) if node.depth == shared // size else 0
        own = salt[:before] + own
        found = self._halves.get(node.key + own[: before + 4 * half])
        if (
            found is None
            or found.parent is not node
            or found.tokens[: before + 4 * half] != own[: before + 4 * half]
        ):
            return GONE, 0
        count = half
        while count < most and own[before + 4 * count :][:4] == found.tokens[before + 4 * count :][:4]:
            count += 1
        return found.block, count

    def usable(self, node: Node) -> Node:
        """The deepest block up to ``node`` after which the next token finds all that it sees through windows, and the
        state, if layers keep one."""
        end = self._seen(node)
        while self.has_state is not None and end.depth and not self.has_state(end):
            if end.parent is None:
                break
            end = self._seen(end.parent)
        return end

    def _seen(self, node: Node) -> Node:
        end, spans = node, self._demand.spans
        longest = max(spans, default=0)
        while node.parent is not None and end.depth - node.depth < longest:
            distance, blocks = end.depth - node.depth, _blocks(node)
            node = node.parent
            if GONE in blocks and any(
                block == GONE and distance < span
                for span, block in zip(spans, blocks[self._full :], strict=True)
            ):
                end = node
        return end

    def unheld(self, node: Node) -> int:
        """How many of the blocks that ``take`` would give have no holder: taking them reduces what is available."""
        count, holders, end = 0, self._pool.holders, node
        for index, span in enumerate(self._demand.spans):
            node = end
            while node.parent is not None and end.depth - node.depth < span:
                count += holders(_blocks(node)[self._full + index]) == 0
                node = node.parent
        node = end
        while self._full and node.parent is not None and holders(node.block) == 0:
            count += self._full
            node = node.parent
        return count

    def take(self, node: Node, group: int = 0) -> list[int]:
        """All blocks up to ``node`` of a group of layers, with one reference more to each; with a window, those that
        the next token sees, and ``GONE`` before them."""
        if group == 0:
            self.mark(node)
        span = self._demand.spans[group - self._full] if group >= self._full else node.depth
        blocks, first = [], max(0, node.depth - span)
        while node.depth > first and node.parent is not None:
            blocks.append(node.others[group - 1] if group else node.block)
            node = node.parent
        blocks.reverse()
        self._pool.share(blocks)
        return [GONE] * first + blocks

    def extend(
        self,
        node: Node,
        tokens: Sequence[int],
        blocks: list[int],
        computed: int,
        salt: bytes = b"",
        shared: int = 0,
        others: Sequence[list[int]] = (),
    ) -> Node:
        """Registers the blocks after ``node`` that the first ``computed`` of ``tokens`` fill; gives the last one.

        ``blocks`` is the holder's table, ``others`` its tables in the other groups; where a block is cached already,
        it replaces the holder's own. Stops at a key that another chain has, as only one of them can be found by it.
        """
        size = self.block_size
        for index in range(node.depth, computed // size if node.alive else 0):
            packed = _pack(tokens[index * size : (index + 1) * size])
            if salt and index == shared // size:
                packed = salt + packed
            key = block_key(node.key, packed)
            found = self._nodes.get(key)
            if found is None:
                if not self._full and all(table[index] == GONE for table in (blocks, *others)):
                    return node
                found = Node(node, key, packed, index + 1, GONE, node.adapter)
                if others:
                    found.others = [GONE] * len(others)
                self._nodes[key] = found
                self._halves[self._half(found)] = found
                node.children += 1
            elif found.parent is not node or found.tokens != packed:
                return node
            if found.block != blocks[index]:
                found.block = self._unite(found, found.block, blocks, index)
            for group, table in enumerate(others):
                if found.others[group] != table[index]:
                    found.others[group] = self._unite(found, found.others[group], table, index)
            node = found
        return node

    def release(self, node: Node, blocks: Sequence[int], weight: float) -> None:
        """Releases a holder's ``blocks``; those up to ``node`` stay cached, if they are still registered."""
        depth = node.depth if node.alive else 0
        self._pool.release(blocks[depth:])
        self._pool.release(blocks[:depth], keep=True, weight=weight)

    def let_go(self, blocks: Sequence[int], weight: float) -> None:
        """Releases a holder's ``blocks`` of a group with a window: those that are registered stay cached."""
        known = [block for block in blocks if block in self._by_block]
        if len(known) < len(blocks):
            self._pool.release([block for block in blocks if block not in self._by_block])
        self._pool.release(known, keep=True, weight=weight)

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
        return [
            (int.from_bytes(node.key, "little"), node.depth * self.block_size)
            for node in ends
            if self.usable(node) is node
        ]

    def forget(self, adapter: str | None) -> None:
        """Invalidates everything computed under this name, which may stand for other weights now."""
        root = self._roots.pop(adapter, None)
        if root is None:
            return
        root.alive = False
        for node in [node for node in self._nodes.values() if node.adapter == adapter]:
            self._remove(node)

    def forget_all(self) -> None:
        """Invalidates everything: the blocks' content is gone."""
        for adapter in list(self._roots):
            self.forget(adapter)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless keys, blocks and chains agree, and all cached blocks are registered."""
        registered = {
            block: node for node in self._nodes.values() for block in _blocks(node) if block != GONE
        }
        if registered != self._by_block:
            raise AssertionError("the registry by key and the one by block differ")
        children: Counter[int] = Counter()
        for key, node in self._nodes.items():
            parent = node.parent
            if not node.alive:
                raise AssertionError(f"block {node.block} is registered for another")
            if parent is None or not parent.alive or node.depth != parent.depth + 1:
                raise AssertionError(f"block {node.block} has no live parent")
            children[id(parent)] += 1
            if node.key != key or block_key(parent.key, node.tokens) != key:
                raise AssertionError(f"block {node.block} has a key that does not match its tokens")
            self._check_blocks(node, parent)
        if any(
            node.children != children[id(node)] for node in (*self._roots.values(), *self._nodes.values())
        ):
            raise AssertionError("a node has children that it does not count")
        cached = sum(self._pool.is_cached(block) for block in self._by_block)
        if cached != self._pool.cached:
            raise AssertionError(f"{self._pool.cached - cached} cached blocks are not registered")
        if any(self._nodes.get(key) is not node for key, node in self._ends.items()):
            raise AssertionError("the digest has a prefix that was evicted")
        if any(not node.alive or self._half(node) != half for half, node in self._halves.items()):
            raise AssertionError("a block is found by its first half that was evicted")

    def _check_blocks(self, node: Node, parent: Node) -> None:
        holders = [self._pool.holders(block) if block != GONE else 0 for block in _blocks(node)]
        for block, count in zip(_blocks(node), holders, strict=True):
            if block != GONE and count == 0 and not self._pool.is_cached(block):
                raise AssertionError(f"block {block} is free, yet registered")
        if not self._full:
            if not node.children and all(block == GONE for block in _blocks(node)):
                raise AssertionError("a node has neither blocks nor children")
            return
        if GONE in _blocks(node)[: self._full] or len(set(holders[: self._full])) > 1:
            raise AssertionError(f"block {node.block} is not held as those of other groups are")
        if max(holders) > holders[0]:
            raise AssertionError(f"block {node.block} is not held by all who hold a window's")
        if parent.parent is not None and self._pool.holders(parent.block) < holders[0]:
            raise AssertionError(f"block {node.block} has holders that do not hold its parent")

    def _half(self, node: Node) -> bytes:
        """Its key in ``_halves``."""
        second = 4 * (self.block_size // 2)
        parent = node.parent.key if node.parent is not None else b""
        return parent + node.tokens[: len(node.tokens) - second]

    def _unite(self, node: Node, known: int, table: list[int], index: int) -> int:
        """``known``, a block of ``node``, replaces its holder's own; if it is ``GONE``, that is registered."""
        own = table[index]
        if own == GONE:
            return known
        if known == GONE:
            self._by_block[own] = node
            return own
        self._pool.share((known,))
        self._pool.release((own,))
        table[index] = known
        self.united += 1
        return known

    def _evict(self, block: int) -> None:
        node = self._by_block.pop(block)
        if block in _blocks(node)[: self._full]:
            if self.on_evict_end is not None and node.key in self._ends:
                self.on_evict_end(node)
            self._remove(node)
            return
        if node.block == block:
            node.block = GONE
        else:
            node.others[node.others.index(block)] = GONE
        # Where no group sees everything, a node is there for its blocks, and for those after it.
        while (
            not self._full
            and node.parent
            and not node.children
            and _blocks(node).count(GONE) == self._demand.groups
        ):
            self._remove(node)
            node = node.parent

    def _remove(self, node: Node) -> None:
        node.alive = False
        del self._nodes[node.key]
        self._ends.pop(node.key, None)
        if self._halves.get(half := self._half(node)) is node:
            del self._halves[half]
        if node.parent is not None:
            node.parent.children -= 1
        for block in _blocks(node):
            if self._by_block.pop(block, None) is not None and self._pool.is_cached(block):
                self._pool.discard(block)


def _blocks(node: Node) -> tuple[int, ...]:
    """In all groups."""
    return node.block, *node.others
