"""Prefix affinity: requests with a common prefix go to the replica that has it in its KV cache.

A prompt's beginning is split into blocks, each identified by a hash over it and all blocks before: equal hashes mean
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
MAX_BYTES = 16 * 1024
"""Of a prompt; what follows is ignored."""
MAX_DEPTH = 32
"""What is nested deeper in a request is ignored."""
MAX_BLOCKS = 2**15
"""Per model, in about 5 MB."""
EPSILON = 0.25


class Prefix(NamedTuple):
    """The beginning of a prompt."""

    key: bytes
    """A hash of the first block, the same in every process."""
    blocks: Sequence[int]
    """This process's hashes of the blocks, in order; there is at least one."""


class Load(Protocol):
    def load(self, backend: str, /) -> int: ...


class Affinity:
    """Which target last served which prefix. One per process; it outlives policies."""

    def __init__(self, *, remembered: int = MAX_BLOCKS, epsilon: float = EPSILON) -> None:
        self._remembered = remembered
        self._epsilon = epsilon
        self._servers: dict[str, OrderedDict[int, str]] = {}

    def order(
        self, model: str, prefix: Prefix, candidates: Sequence[Candidate], loads: Load
    ) -> list[Candidate]:
        """``candidates``, the best first.

        That is the one with the longest known prefix among those below their load bound; where no prefix is known, the
        first of those by weighted rendezvous hashing. The others follow in the latter's order.
        """
        by_hash = rendezvous(prefix.key, candidates)
        available = self._below_bound(by_hash, loads)
        chosen = self._known(model, prefix, available) or next(iter(available.values()))
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
        name = target_name(served)
        # The longest prefix is entered first, and so evicted first.
        for block in reversed(prefix.blocks):
            servers[block] = name
            servers.move_to_end(block)
        while len(servers) > self._remembered:
            servers.popitem(last=False)

    def keep(self, models: Collection[str]) -> None:
        """Forget all other models."""
        self._servers = {model: servers for model, servers in self._servers.items() if model in models}

    def _below_bound(self, candidates: Sequence[Candidate], loads: Load) -> Mapping[str, Candidate]:
        """Those whose share of the load is below its bound. There is always one: the bounds add up to more."""
        load = [loads.load(candidate.target.backend) for candidate in candidates]
        weights = sum(candidate.target.weight for candidate in candidates)
        allowed = (1 + self._epsilon) * (sum(load) + 1) / weights
        return {
            target_name(candidate): candidate
            for candidate, taken in zip(candidates, load, strict=True)
            if taken < math.ceil(allowed * candidate.target.weight)
        }


class ReadAffinity(Affinity):
    """What another has remembered, to be asked where a request would go: nothing is added to it."""

    def __init__(self, read: Affinity) -> None:
        super().__init__(remembered=read._remembered, epsilon=read._epsilon)
        self._servers = read._servers

    def remember(self, model: str, prefix: Prefix, served: Candidate) -> None:
        """It is not."""

    def keep(self, models: Collection[str]) -> None:
        """All of it is kept."""


def target_name(candidate: Candidate) -> str:
    return f"{candidate.target.backend}/{candidate.target.model}"


def rendezvous(key: bytes, candidates: Sequence[Candidate]) -> list[Candidate]:
    """``candidates`` in an order that follows from ``key``: each is first for its weight's share of all keys.

    A new candidate takes over its share, and nothing moves among the others. The weighting is Schindelhauer
    and Schomaker's logarithmic method (2005, https://doi.org/10.1145/1073970.1074008).
    """

    def distance(candidate: Candidate) -> float:
        digest = blake2b(key + target_name(candidate).encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 1) / 2**64
        return -math.log(uniform) / candidate.target.weight

    return sorted(candidates, key=distance)


class Beginning(NamedTuple):
    """Of a prompt, as bytes."""

    data: bytes
    owner: bytes
    """Whose it is: equal beginnings of others are others."""
    common: int
    """Bytes of ``data`` that are nobody's own."""

    def prefix(self, size: int = BLOCK, salt: bytes = b"") -> Prefix:
        """In blocks of ``size`` bytes."""
        data, owner, common = self
        mine = common < size
        key = blake2b((owner if mine else b"") + data[:size], digest_size=8).digest()
        # Python's hash is fast, and keyed for each process: nobody can construct a collision.
        block = hash(salt + key)
        blocks = [block]
        # A partial last block would change as soon as the conversation goes on.
        for start in range(size, len(data) - size + 1, size):
            if not mine and start + size > common:
                block, mine = hash((block, owner)), True
            block = hash((block, data[start : start + size]))
            blocks.append(block)
        return Prefix(key, blocks)


def prefix_of(request: ChatRequest, tenant: str, sharing: Sharing = "none") -> Prefix:
    """The prefix of ``request``'s prompt. Each tenant has prefixes of its own.

    A replica answers a cached prefix sooner: if prefixes were shared, one tenant could learn by timing what another
    has asked. ``sharing`` is what may be shared all the same (``gateway/prefix_sharing.py``).
    """
    return beginning_of(request, tenant, sharing).prefix()


def beginning_of(
    request: ChatRequest, tenant: str, sharing: Sharing = "none", most: int = MAX_BYTES
) -> Beginning:
    """The first ``most`` bytes of ``request``'s prompt."""
    written = bytearray()
    # Chat templates put the tools before the conversation.
    for given in (request.params.get("tools"), request.params.get("functions")):
        if given:
            _write(given, written, MAX_DEPTH, most)
    common = 0
    if sharing == "system" and request.messages and not written:
        _write(request.messages[0], written, MAX_DEPTH, most)
        common = len(written) + 1
        written.clear()
    _write(request.prompt if request.messages is None else request.messages, written, MAX_DEPTH, most)
    owner = (
        b"" if sharing == "all" else blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    )
    return Beginning(bytes(written[:most]), owner, common)


def written(value: Json, most: int) -> bytes:
    """``value`` in an unambiguous form, its first ``most`` bytes."""
    data = bytearray()
    _write(value, data, MAX_DEPTH, most)
    return bytes(data[:most])


def _write(value: Json, data: bytearray, depth: int, most: int) -> None:
    """Append ``value`` to ``data`` in an unambiguous form, up to ``most`` bytes and what is begun then."""
    if len(data) >= most or not depth:
        return
    match value:
        case str():
            data += b'"'
            data += value[:most].encode("utf-8", "surrogatepass")
        case {}:
            data += b"{"
            for name, item in value.items():
                _write(name, data, depth - 1, most)
                _write(item, data, depth - 1, most)
                if len(data) >= most:
                    return
            data += b"}"
        case [int(), *_]:
            data += b"#"
            data += b",".join(b"%d" % item for item in value[: most // 2] if isinstance(item, int))
        case list() | tuple():
            data += b"["
            for item in value:
                _write(item, data, depth - 1, most)
                if len(data) >= most:
                    return
            data += b"]"
        case _:
            data += repr(value).encode()
