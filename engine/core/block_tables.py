"""The blocks that requests hold: allocated, found in the prefix cache, shared, copied on write, released.

A request has a block table for each group of layers (``engine/kv_groups.py``). In a group with a sliding window blocks
behind it are released as the request moves on, and stay in the prefix cache until they are evicted. While its prompt
is computed, such a group has blocks for the window and one step; the others have them for all tokens from the start.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from engine.core.block_demand import BlockDemand
from engine.core.block_pool import GONE, BlockPool
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request
from engine.core.state_checkpoints import StateCheckpoints
from engine.core.state_slots import NO_SLOT, StateSlots
from engine.core.tiers.tiered_cache import TieredCache

_NEVER = sys.maxsize


class BlockTables:
    """``prefixes`` is ``None`` without prefix caching. ``demand``: ``None`` for one group without a window. ``states``:
    slots that requests hold beside their blocks, where layers keep a state. ``tiers``: what keeps copies of full
    blocks. ``checkpoints``: states of cached prefixes, without which these are of no use where layers keep a state."""

    def __init__(
        self,
        pool: BlockPool,
        prefixes: PrefixCache | None,
        block_size: int,
        demand: BlockDemand | None = None,
        states: StateSlots | None = None,
        tiers: TieredCache | None = None,
        checkpoints: StateCheckpoints | None = None,
    ) -> None:
        self.pool = pool
        self.states = states
        self.checkpoints = checkpoints
        self.tiers = tiers
        self.prefixes = prefixes
        self.block_size = block_size
        self.demand = demand or BlockDemand(block_size=block_size)
        self.groups = self.demand.groups
        self.altered: dict[int, int] = {}
        """For the next plan: ``Plan.altered``."""

    def count(self, length: int) -> int:
        """Blocks for ``length`` tokens in one group."""
        return -(-length // self.block_size)

    def hit_tokens(self, request: Request) -> int:
        """Tokens of a request without blocks that need not be computed. Sets its ``chain`` to the cached prefix."""
        if self.prefixes is None:
            return 0
        if request.scoring:
            request.chain = self.prefixes.root(request.adapter)
            return 0
        known = request.found or request.chain or self.prefixes.root(request.adapter)
        chain = self.prefixes.match(known, request.tokens, request.salt, request.shared)
        if self.demand.windows or self.checkpoints is not None:
            request.found = chain
            chain = self.prefixes.usable(chain)
        request.chain = chain
        return chain.depth * self.block_size

    def fits(self, request: Request, available: int) -> bool:
        """Whether ``available`` blocks are enough for a request without blocks. Blocks that other requests hold
        already cost nothing; cached ones do, as they count as available."""
        needed = self.demand.more(len(request.tokens), self.hit_tokens(request) // self.block_size)
        if needed <= available and self.prefixes is not None and request.chain is not None:
            needed += self.prefixes.unheld(request.chain)
        return needed <= available

    def open(self, request: Request, copies: list[tuple[int, int]] | None = None) -> None:
        """Gives it blocks for all its tokens, cached ones included, whose tokens count as computed. Of a block of
        which it has half or more in common with a cached one, it gets a copy, if there may be ``copies``."""
        request.boundary = _NEVER
        common = 0
        if self.states is not None:
            request.state = self.states.take()
        if self.groups > 1:
            request.others = [[] for _ in range(1, self.groups)]
        if self.prefixes is not None and request.chain is not None:
            # All that is cached, before anything is allocated, which may evict it.
            for group, table in enumerate(_tables(request)):
                table += self.prefixes.take(request.chain, group)
            request.computed = len(request.blocks) * self.block_size
            request.boundary = request.computed + self.block_size
            if self.checkpoints is not None:
                self.checkpoints.begin(request, request.chain, request.found, self.block_size)
            request.found = None
            whole = self.groups == self.demand.full == 1 and self.states is None
            if copies is not None and whole and not request.scoring:
                source, common = self.prefixes.partial(
                    request.chain, request.tokens, request.salt, request.shared
                )
        needed = self.count(len(request.tokens))
        for table in _tables(request)[: self.demand.full]:
            table += self.pool.allocate(needed - len(table))
        if copies is not None and common:
            # What is copied from may be evicted by now: until the step computes, nothing writes to it.
            copies.append((source, request.blocks[request.computed // self.block_size]))
            request.computed += common
        if self.demand.windows:
            request.behind = sum(table.count(GONE) for table in _tables(request))
            self._slide(request)

    def grow(self, request: Request, length: int, copies: list[tuple[int, int]]) -> bool:
        """Gives it blocks for ``length`` tokens, and a copy of the block written next if that is shared; False if
        there are too few."""
        blocks, index, count = request.blocks, request.computed // self.block_size, self.count(length)
        # Blocks for draft tokens do not replace a copy.
        needed = max(0, count - len(blocks))
        needed += sum(max(0, count - len(table)) for table in request.others)
        # In all groups, or in none.
        shared = request.forked and self.pool.holders(blocks[index]) > 1
        if needed + shared * self.groups > self.pool.available:
            return False
        if shared:
            for table in _tables(request):
                (own,) = self.pool.allocate(1)
                copies.append((table[index], own))
                self.pool.release((table[index],))
                table[index] = own
            self._alter(request, index)
        request.forked = False
        if needed > 0:
            for table in _tables(request):
                if count > len(table):
                    table.extend(self.pool.allocate(count - len(table)))
        return True

    def short(self, request: Request, length: int) -> bool:
        """Whether a group other than the first lacks blocks for ``length`` tokens."""
        return any(length > len(table) * self.block_size for table in request.others)

    def trim(self, requests: Iterable[Request]) -> bool:
        """Releases blocks held for draft tokens only; False if there were none."""
        before = self.pool.available
        for request in requests:
            needed = self.count(len(request.tokens) + request.pending)
            for table in (request.blocks, *request.others):
                if len(table) > needed:
                    self.pool.release(table[needed:])
                    del table[needed:]
        return self.pool.available > before

    def learn(self, request: Request) -> None:
        """Registers its full blocks in the prefix cache, and releases those behind windows. Called once ``computed``
        has reached ``boundary``."""
        if self.prefixes is not None and request.chain is not None:
            depth, united = request.chain.depth, self.prefixes.united
            chain = self.prefixes.extend(
                request.chain,
                request.tokens,
                request.blocks,
                request.computed,
                request.salt,
                request.shared,
                request.others,
            )
            request.chain = chain
            if self.prefixes.united > united:
                self._alter(request, depth)
            if self.tiers is not None and chain.depth > depth:
                self.tiers.learned(chain, depth, request.weight)
            self._keep_state(request)
            known = chain.depth == request.computed // self.block_size
            request.boundary = (chain.depth + 1) * self.block_size if known else _NEVER
        if self.demand.windows:
            self._slide(request)

    def reach(self, request: Request, start: int) -> None:
        """It is about to go on at ``start``: the state there is kept for others, if it is to be."""
        if self.checkpoints is not None and request.stops:
            self.checkpoints.reach(request, start)
            self._keep_state(request)

    def _keep_state(self, request: Request) -> None:
        if self.checkpoints is not None and self.prefixes is not None:
            node = self.checkpoints.learn(request, self.block_size)
            if node is not None:
                self.prefixes.mark(node)

    def share(self, leader: Request, fork: Request) -> None:
        """``fork`` shares the blocks of the prompt, all of which is computed, and gets a copy of its state, if a slot
        is free."""
        if self.states is not None:
            fork.state = self.states.fork(leader.state)
        held = self.count(leader.prompt_length)
        tables = [table[:held] for table in _tables(leader)]
        for table in tables:
            self.pool.share(block for block in table if block != GONE)
        fork.blocks, *fork.others = tables
        fork.behind = leader.behind
        fork.computed = leader.prompt_length
        fork.chain, fork.boundary = leader.chain, leader.boundary
        leader.forked = fork.forked = leader.prompt_length % self.block_size > 0

    def lacks_state(self, request: Request) -> bool:
        """Whether it shares blocks, but no slot was free for its state."""
        return self.states is not None and request.state == NO_SLOT

    def mark(self, request: Request) -> None:
        """Marks the end of its prefix as one that other prompts may continue."""
        if self.prefixes is not None and request.chain is not None:
            self.prefixes.mark(request.chain)

    def close(self, request: Request) -> None:
        """Releases all its blocks; those that the prefix cache knows stay cached."""
        if self.tiers is not None and request.chain is not None:
            self.tiers.used(request.chain, request.weight)
            request.sought = False
        for table in _tables(request)[: self.demand.full]:
            if self.prefixes is not None and request.chain is not None:
                self.prefixes.release(request.chain, table, request.weight)
            else:
                self.pool.release(table)
        for _, table in self._windowed(request):
            self._release(request, [block for block in table if block != GONE])
        if self.states is not None:
            if self.checkpoints is not None:
                self.checkpoints.close(request)
            self.states.release(request.state)
            request.state = NO_SLOT
        request.blocks, request.others = [], ()
        request.behind = 0
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
        holders = list(holders)
        if self.states is not None:
            slots = [request.state for request in holders]
            if self.checkpoints is not None:
                slots += self.checkpoints.held
                slots += [request.checkpoint[1] for request in holders if request.checkpoint is not None]
            self.states.check_integrity(slots)
        for request in holders:
            blocks = [block for table in _tables(request) for block in table if block != GONE]
            held.update(blocks)
            if len(set(blocks)) != len(blocks):
                raise AssertionError(f"request {request.id} holds a block twice")
            if len(blocks) != request.held:
                raise AssertionError(f"request {request.id} counts {request.held} blocks of {len(blocks)}")
            self._check_tables(request)
        if len(held) != self.pool.used:
            raise AssertionError(f"requests hold {len(held)} blocks, the pool counts {self.pool.used}")
        for block, count in held.items():
            if self.pool.holders(block) != count:
                raise AssertionError(
                    f"block {block} has {self.pool.holders(block)} references, {count} holders"
                )

    def _check_tables(self, request: Request) -> None:
        tables = _tables(request)
        if len(tables) != self.groups:
            raise AssertionError(f"request {request.id} has no table for some group")
        if request.computed > min(map(len, tables)) * self.block_size:
            raise AssertionError(f"request {request.id} has computed more than its blocks hold")
        if any(GONE in table for table in tables[: self.demand.full]):
            raise AssertionError(f"request {request.id} lacks blocks of a group that sees all tokens")
        for index, table in self._windowed(request):
            behind = table.count(GONE)
            if behind > self.demand.behind(index, request.computed) or GONE in table[behind:]:
                raise AssertionError(f"request {request.id} lacks blocks that are within the window")
        node = request.chain
        while node is not None and node.alive and node.parent is not None:
            for table, block in zip(tables, (node.block, *node.others), strict=True):
                if table[node.depth - 1] not in (block, GONE):
                    raise AssertionError(f"request {request.id} does not hold what the cache knows of it")
            node = node.parent

    def _alter(self, request: Request, index: int) -> None:
        self.altered[request.id] = min(index, self.altered.get(request.id, index))

    def _slide(self, request: Request) -> None:
        """Releases what is behind windows, and gives those that do not reach the end of the prompt as many blocks."""
        demand, length = self.demand, len(request.tokens)
        for index, table in self._windowed(request):
            behind = demand.behind(index, request.computed)
            gone = []
            for place in range(behind - 1, -1, -1):
                if table[place] == GONE:
                    break
                gone.append(table[place])
                table[place] = GONE
            if gone:
                request.behind += len(gone)
                self._release(request, gone)
            more = min(demand.reach(index, behind, length) - len(table), self.pool.available)
            if more > 0:
                table += self.pool.allocate(more)
            request.boundary = min(request.boundary, demand.next_behind(index, behind))

    def _release(self, request: Request, blocks: list[int]) -> None:
        """Of a group with a window, the last first."""
        if self.prefixes is not None:
            self.prefixes.let_go(blocks, request.weight)
        else:
            self.pool.release(blocks)

    def _windowed(self, request: Request) -> Iterator[tuple[int, list[int]]]:
        """The tables of groups with a window."""
        return enumerate(_tables(request)[self.demand.full :])


def _tables(request: Request) -> tuple[list[int], ...]:
    return request.blocks, *request.others
