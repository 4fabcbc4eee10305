"""The blocks that requests hold: allocated, found in the prefix cache, shared, copied on write, released."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request

_NEVER = sys.maxsize


class BlockTables:
    """``prefixes`` is ``None`` without prefix caching."""

    def __init__(self, pool: BlockPool, prefixes: PrefixCache | None, block_size: int) -> None:
        self.pool = pool
        self.prefixes = prefixes
        self.block_size = block_size

    def count(self, length: int) -> int:
        """Blocks for ``length`` tokens."""
        return -(-length // self.block_size)

    def hit_tokens(self, request: Request) -> int:
        """Tokens of a request without blocks that need not be computed. Sets its ``chain`` to the cached prefix."""
        if self.prefixes is None:
            return 0
        if request.scoring:
            request.chain = self.prefixes.root(request.adapter)
            return 0
        known = request.chain or self.prefixes.root(request.adapter)
        request.chain = self.prefixes.match(known, request.tokens, request.salt, request.shared)
        return request.chain.depth * self.block_size

    def fits(self, request: Request, available: int) -> bool:
        """Whether ``available`` blocks are enough for a request without blocks. Blocks that other requests hold
        already cost nothing; cached ones do, as they count as available."""
        needed = self.count(len(request.tokens)) - self.hit_tokens(request) // self.block_size
        if needed <= available and self.prefixes is not None and request.chain is not None:
            needed += self.prefixes.unheld(request.chain)
        return needed <= available

    def open(self, request: Request) -> None:
        """Gives it blocks for all its tokens, cached ones included, whose tokens count as computed."""
        needed = self.count(len(request.tokens))
        request.boundary = _NEVER
        if self.prefixes is not None and request.chain is not None:
            request.blocks = self.prefixes.take(request.chain)
            request.computed = len(request.blocks) * self.block_size
            request.boundary = request.computed + self.block_size
        request.blocks += self.pool.allocate(needed - len(request.blocks))

    def grow(self, request: Request, length: int, copies: list[tuple[int, int]]) -> bool:
        """Gives it blocks for ``length`` tokens, and a copy of the block written next if that is shared; False if
        there are too few."""
        blocks, index = request.blocks, request.computed // self.block_size
        # Blocks for draft tokens do not replace a copy.
        needed = max(0, self.count(length) - len(blocks))
        shared = request.forked and self.pool.holders(blocks[index]) > 1
        if needed + shared > self.pool.available:
            return False
        if shared:
            (own,) = self.pool.allocate(1)
            copies.append((blocks[index], own))
            self.pool.release((blocks[index],))
            blocks[index] = own
        request.forked = False
        if needed > 0:
            blocks.extend(self.pool.allocate(needed))
        return True

    def trim(self, requests: Iterable[Request]) -> bool:
        """Releases blocks held for draft tokens only; False if there were none."""
        before = self.pool.available
        for request in requests:
            needed = self.count(len(request.tokens) + request.pending)
            if len(request.blocks) > needed:
                self.pool.release(request.blocks[needed:])
                del request.blocks[needed:]
        return self.pool.available > before

    def learn(self, request: Request) -> None:
        """Registers its full blocks in the prefix cache. Called once ``computed`` has reached ``boundary``."""
        if self.prefixes is None or request.chain is None:
            return
        chain = self.prefixes.extend(
            request.chain, request.tokens, request.blocks, request.computed, request.salt, request.shared
        )
        request.chain = chain
        known = chain.depth == request.computed // self.block_size
        request.boundary = (chain.depth + 1) * self.block_size if known else _NEVER

    def share(self, leader: Request, fork: Request) -> None:
        """``fork`` shares the blocks of the prompt, all of which is computed."""
        held = self.count(leader.prompt_length)
        self.pool.share(leader.blocks[:held])
        fork.blocks = leader.blocks[:held]
        fork.computed = leader.prompt_length
        fork.chain, fork.boundary = leader.chain, leader.boundary
        leader.forked = fork.forked = leader.prompt_length % self.block_size > 0

    def mark(self, request: Request) -> None:
        """Marks the end of its prefix as one that other prompts may continue."""
        if self.prefixes is not None and request.chain is not None:
            self.prefixes.mark(request.chain)

    def close(self, request: Request) -> None:
        """Releases all its blocks; those that the prefix cache knows stay cached."""
        if self.prefixes is not None and request.chain is not None:
            self.prefixes.release(request.chain, request.blocks, request.weight)
        else:
            self.pool.release(request.blocks)
        request.blocks = []
        request.computed = 0
        request.forked = False

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """Raises ``AssertionError`` unless pool and cache are consistent, and references equal holders."""
        self.pool.check_integrity()
        if self.prefixes is not None:
            self.prefixes.check_integrity()
        elif self.pool.cached:
            raise AssertionError("blocks are cached that are not registered")
        held: Counter[int] = Counter()
        for request in holders:
            held.update(request.blocks)
            if len(set(request.blocks)) != len(request.blocks):
                raise AssertionError(f"request {request.id} holds a block twice")
            if request.computed > len(request.blocks) * self.block_size:
                raise AssertionError(f"request {request.id} has computed more than its blocks hold")
            node = request.chain
            while node is not None and node.alive and node.parent is not None:
                if request.blocks[node.depth - 1] != node.block:
                    raise AssertionError(f"request {request.id} does not hold what the cache knows of it")
                node = node.parent
        if len(held) != self.pool.used:
            raise AssertionError(f"requests hold {len(held)} blocks, the pool counts {self.pool.used}")
        for block, count in held.items():
            if self.pool.holders(block) != count:
                raise AssertionError(
                    f"block {block} has {self.pool.holders(block)} references, {count} holders"
                )
