"""Prefix affinity: requests that begin alike go to the replica that has their beginning in its KV cache.

A prompt's beginning is cut into blocks, each known by a hash that covers all blocks before it: equal hashes mean
equal prefixes. Load is bounded as in consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam
2016, https://arxiv.org/abs/1608.01350): no replica takes a request that would bring it above (1+ε) times its share.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from gateway.policy.schema import Sharing
from gateway.types import Candidate, ChatRequest, Json

BLOCK = 256
"""Bytes; about 64 tokens of English."""
MOST = 16 * 1024
"""Bytes of a prompt that are looked at."""
DEPTH = 32
"""What is nested deeper in a request is passed over."""
REMEMBERED = 2**15
"""Blocks remembered for a model, in about 5 MB."""
EPSILON = 0.25


class Prefix(NamedTuple):
    """What a prompt begins with."""

    key: bytes
    """A hash of the first block that is the same in every process."""
    blocks: Sequence[int]
    """This process's hashes of the blocks, in order; there is at least one."""


class Load(Protocol):
    def load(self, backend: str, /) -> int: ...


class Affinity:
    """Who last served which prefix. One for the process: what it has learned outlives a policy."""

    def __init__(self, *, remembered: int = REMEMBERED, epsilon: float = EPSILON) -> None:
        self._remembered = remembered
        self._epsilon = epsilon
        self._servers: dict[str, OrderedDict[int, str]] = {}

    def order(
        self, model: str, prefix: Prefix, candidates: Sequence[Candidate], loads: Load
    ) -> list[Candidate]:
        """``candidates``, the best first.

        That is the one with the longest known prefix among those with room for one more; where no prefix is known,
        it is the first with room by weighted rendezvous hashing. The others follow in the latter's order.
        """
        by_hash = rendezvous(prefix.key, candidates)
        roomy = self._below_bound(by_hash, loads)
        chosen = self._known(model, prefix, roomy) or next(iter(roomy.values()))
        return [chosen, *(candidate for candidate in by_hash if candidate is not chosen)]

    def _known(self, model: str, prefix: Prefix, candidates: Mapping[str, Candidate]) -> Candidate | None:
        """The one that served the longest part of ``prefix``."""
        servers = self._servers.get(model)
        if servers is None:
            return None
        for block in reversed(prefix.blocks):
            known = candidates.get(servers.get(block, ""))
            if known is not None:
                return known
        return None

    def remember(self, model: str, prefix: Prefix, served: Candidate) -> None:
        servers = self._servers.setdefault(model, OrderedDict())
        name = place(served)
        # The longest prefix is entered first, and so the first to be forgotten.
        for block in reversed(prefix.blocks):
            servers[block] = name
            servers.move_to_end(block)
        while len(servers) > self._remembered:
            servers.popitem(last=False)

    def keep(self, models: Collection[str]) -> None:
        """Forget all other models."""
        self._servers = {model: servers for model, servers in self._servers.items() if model in models}

    def _below_bound(self, candidates: Sequence[Candidate], loads: Load) -> Mapping[str, Candidate]:
        """Those whose share of the load has room for one more. There is always one: the bounds add up to more."""
        load = [loads.load(candidate.target.backend) for candidate in candidates]
        weights = sum(candidate.target.weight for candidate in candidates)
        allowed = (1 + self._epsilon) * (sum(load) + 1) / weights
        return {
            place(candidate): candidate
            for candidate, taken in zip(candidates, load, strict=True)
            if taken < math.ceil(allowed * candidate.target.weight)
        }


def place(candidate: Candidate) -> str:
    return f"{candidate.target.backend}/{candidate.target.model}"


def rendezvous(key: bytes, candidates: Sequence[Candidate]) -> list[Candidate]:
    """``candidates`` in an order that ``key`` decides: each is first for its weight's share of all keys.

    A candidate that joins takes over its share, and nothing moves among the others. The weighting is Schindelhauer
    and Schomaker's logarithmic method (2005, https://doi.org/10.1145/1073970.1074008).
    """

    def distance(candidate: Candidate) -> float:
        digest = blake2b(key + place(candidate).encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 1) / 2**64
        return -math.log(uniform) / candidate.target.weight

    return sorted(candidates, key=distance)


def prefix_of(request: ChatRequest, tenant: str, sharing: Sharing = "none") -> Prefix:
    """What ``request``'s prompt begins with. Each tenant has prefixes of its own.

    A replica answers sooner what it has seen before: with prefixes shared, one tenant could find out by timing what
    another has asked. ``sharing``: what is everybody's all the same, as ``gateway/prefixes.py`` finds it.
    """
    written = bytearray()
    # Chat templates put the tools before the conversation.
    for given in (request.params.get("tools"), request.params.get("functions")):
        if given:
            _write(given, written, DEPTH)
    common = 0
    if sharing == "system" and request.messages and not written:
        _write(request.messages[0], written, DEPTH)
        common = len(written) + 1
        written.clear()
    _write(request.prompt if request.messages is None else request.messages, written, DEPTH)
    data = bytes(written)
    owner = (
        b"" if sharing == "all" else blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    )
    mine = common < BLOCK
    key = blake2b((owner if mine else b"") + data[:BLOCK], digest_size=8).digest()
    # Python's hash is quick, and keyed anew for each process: nobody can make two prefixes meet.
    block = hash(key)
    blocks = [block]
    # A last block that is not full would be another one as soon as the conversation goes on.
    for start in range(BLOCK, min(len(data), MOST) - BLOCK + 1, BLOCK):
        if not mine and start + BLOCK > common:
            block, mine = hash((block, owner)), True
        block = hash((block, data[start : start + BLOCK]))
        blocks.append(block)
    return Prefix(key, blocks)


def _write(value: Json, data: bytearray, depth: int) -> None:
    """Add ``value`` to ``data`` in one unmistakable form, as far as it is looked at."""
    if len(data) >= MOST or not depth:
        return
    match value:
        case str():
            data += b'"'
            data += value[:MOST].encode("utf-8", "surrogatepass")
        case {}:
            data += b"{"
            for name, item in value.items():
                _write(name, data, depth - 1)
                _write(item, data, depth - 1)
                if len(data) >= MOST:
                    return
            data += b"}"
        case [int(), *_]:
            data += b"#"
            data += b",".join(b"%d" % item for item in value[: MOST // 2] if isinstance(item, int))
        case list() | tuple():
            data += b"["
            for item in value:
                _write(item, data, depth - 1)
                if len(data) >= MOST:
                    return
            data += b"]"
        case _:
            data += repr(value).encode()
