"""The blocks that requests hold: taken from the pool and the prefix cache, shared, copied on write, given back."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request

_NEVER = sys.maxsize


class BlockTables:
    """``prefixes`` is ``None`` where nothing is to be found again."""

    def __init__(self, pool: BlockPool, prefixes: PrefixCache | None, block_size: int) -> None:
        self.pool = pool
        self.prefixes = prefixes
        self.block_size = block_size

    def count(self, length: int) -> int:
        """Blocks for ``length`` tokens."""
        return -(-length // self.block_size)

    def hit_tokens(self, request: Request) -> int:
        """Tokens of a request without blocks that need not be computed. Sets its ``chain`` to what is known."""
        if self.prefixes is None:
            return 0
        if request.scoring:
            request.chain = self.prefixes.root(request.adapter)
            return 0
        known = request.chain or self.prefixes.root(request.adapter)
        request.chain = self.prefixes.match(known, request.tokens, request.salt, request.shared)
        return request.chain.depth * self.block_size

    def fits(self, request: Request, available: int) -> bool:
        """Whether ``available`` blocks are enough for a request without blocks. What others hold already is free;
        what is cached is not, as it was available to all."""
        needed = self.count(len(request.tokens)) - self.hit_tokens(request) // self.block_size
        if needed <= available and self.prefixes is not None and request.chain is not None:
            needed += self.prefixes.unheld(request.chain)
        return needed <= available

    def open(self, request: Request) -> None:
        """Blocks for all its tokens, those that ``fits`` found among them: these count as computed."""
        needed = self.count(len(request.tokens))
        request.boundary = _NEVER
        if self.prefixes is not None and request.chain is not None:
            request.blocks = self.prefixes.take(request.chain)
            request.computed = len(request.blocks) * self.block_size
            request.boundary = request.computed + self.block_size
        request.blocks += self.pool.allocate(needed - len(request.blocks))

    def grow(self, request: Request, length: int, copies: list[tuple[int, int]]) -> bool:
        """Blocks for ``length`` tokens, the one written next held by nobody else; False if there are too few."""
        blocks, index = request.blocks, request.computed // self.block_size
        # Those that were given for guesses are no substitute for a copy.
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
        """Takes back what was given for guesses alone; False if there was nothing."""
        before = self.pool.available
        for request in requests:
            needed = self.count(len(request.tokens))
            if len(request.blocks) > needed:
                self.pool.release(request.blocks[needed:])
                del request.blocks[needed:]
        return self.pool.available > before

    def learn(self, request: Request) -> None:
        """Full blocks can be found from now on. To be called once ``computed`` has reached ``boundary``."""
        if self.prefixes is None or request.chain is None:
            return
        chain = self.prefixes.extend(
            request.chain, request.tokens, request.blocks, request.computed, request.salt, request.shared
        )
        request.chain = chain
        known = chain.depth == request.computed // self.block_size
        request.boundary = (chain.depth + 1) * self.block_size if known else _NEVER

    def share(self, leader: Request, fork: Request) -> None:
        """``fork`` holds the blocks of what they have in common: the prompt, of which all is computed."""
        held = self.count(leader.prompt_length)
        self.pool.share(leader.blocks[:held])
        fork.blocks = leader.blocks[:held]
        fork.computed = leader.prompt_length
        fork.chain, fork.boundary = leader.chain, leader.boundary
        leader.forked = fork.forked = leader.prompt_length % self.block_size > 0

    def mark(self, request: Request) -> None:
        """Others may go on from here."""
        if self.prefixes is not None and request.chain is not None:
            self.prefixes.mark(request.chain)

    def close(self, request: Request) -> None:
        """Gives back all blocks; those that are known stay cached."""
        if self.prefixes is not None and request.chain is not None:
            self.prefixes.release(request.chain, request.blocks, request.weight)
        else:
            self.pool.release(request.blocks)
        request.blocks = []
        request.computed = 0
        request.forked = False

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """Raises ``AssertionError`` unless all is whole and used blocks have as many references as holders."""
        self.pool.check_integrity()
        if self.prefixes is not None:
            self.prefixes.check_integrity()
        elif self.pool.cached:
            raise AssertionError("blocks are cached that nobody can find")
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
