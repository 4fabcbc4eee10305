"""States that are kept for other requests: those after prefixes that the prefix cache has blocks of.

A state is of all tokens of its request, so what layers without one have cached is of use only where somebody's state
was copied just then. Such checkpoints are made where it is likely that another prompt goes on: where a prompt leaves
what an earlier one has in common with it (Marconi, https://arxiv.org/abs/2411.19379), and at the last full block of
each prompt, after which the next turn of a chat goes on. A chunk of the prompt ends there, and the next step copies the
state before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.prefix_cache import Node
from engine.core.request import Request
from engine.core.state_slots import NO_SLOT, StateSlots


class StateCheckpoints:
    def __init__(self, slots: StateSlots, most: int, *, least: int = 0) -> None:
        """``most``: checkpoints; ``slots`` has as many beside those of requests. ``least``: tokens that one must spare,
        as it costs its own prompt a step."""
        self._slots = slots
        self._most = most
        self._least = least
        self._by_node: dict[Node, int] = {}
        """Used last, last. Those of nodes that are not alive any more are never found, and so the first to go."""
        self._promised = 0
        """Slots of requests whose block the prefix cache does not know yet."""

    def __contains__(self, node: Node) -> bool:
        return node in self._by_node

    def begin(self, request: Request, node: Node, known: Node | None, block_size: int) -> None:
        """The request starts after ``node``; ``known``: the last of its blocks that are cached. Its slot gets the
        checkpoint's state."""
        if node.depth:
            self._slots.copy(self._use(node), request.state)
        places = {(len(request.tokens) - 1) // block_size}
        if known is not None:
            places.add(known.depth)
        start = node.depth * block_size
        request.stops = sorted(
            stop for place in places if (stop := place * block_size) >= start + max(1, self._least)
        )

    def reach(self, request: Request, start: int) -> None:
        """All before ``start`` is computed, or will be when the next plan's copies are made."""
        stops = request.stops
        if not stops or stops[0] > start:
            return
        del stops[0]
        if request.checkpoint is None and (slot := self._take()) != NO_SLOT:
            self._slots.copy(request.state, slot)
            request.checkpoint = start, slot
            self._promised += 1

    def learn(self, request: Request, block_size: int) -> Node | None:
        """The checkpoint's node, if the prefix cache knows it by now: it can be found from now on."""
        if request.checkpoint is None or request.chain is None:
            return None
        stop, slot = request.checkpoint
        node = request.chain
        if not node.alive or node.depth * block_size != stop:
            return None
        request.checkpoint = None
        self._promised -= 1
        if node in self._by_node:
            self._slots.release(slot)
            self._use(node)
        else:
            self._by_node[node] = slot
        return node

    def close(self, request: Request) -> None:
        """It has ended, or starts again."""
        request.stops = []
        self._break(request)

    def clear(self, running: Iterable[Request]) -> None:
        """None is known to be right any more, nor that of anyone who runs."""
        for request in running:
            self._break(request)
        for slot in self._by_node.values():
            self._slots.release(slot)
        self._by_node.clear()

    @property
    def held(self) -> Iterator[int]:
        """Slots, of requests' promised ones none."""
        return iter(self._by_node.values())

    def _break(self, request: Request) -> None:
        if request.checkpoint is not None:
            self._slots.release(request.checkpoint[1])
            request.checkpoint = None
            self._promised -= 1

    def _use(self, node: Node) -> int:
        slot = self._by_node.pop(node)
        self._by_node[node] = slot
        return slot

    def _take(self) -> int:
        if len(self._by_node) + self._promised >= self._most or not self._slots.free:
            if not self._by_node:
                return NO_SLOT
            oldest = next(iter(self._by_node))
            self._slots.release(self._by_node.pop(oldest))
        return self._slots.take()
