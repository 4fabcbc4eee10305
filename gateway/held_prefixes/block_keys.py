"""Keys of a prompt's blocks of tokens: equal keys mean equal tokens up to the block's end.

As the bundled engine computes them (``engine/core/prefix_cache.py``), so that its digest and the events of other
servers are looked up in one way:

    key of nothing  = blake2b-64(adapter's name in UTF-8, or nothing at all for the base model)
    key of a block  = blake2b-64(key of the blocks before it + extra + its token ids as uint32, little-endian)

``extra`` is what makes a block another one although its tokens are the same: a salt, the hash of an image. The hashes
of vLLM and SGLang are of no use here: they change with version, option and Python's own seed.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

_ID_BYTES = 4


def root_key(adapter: str = "") -> bytes:
    """Of the empty prompt."""
    return blake2b(adapter.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def block_key(parent: bytes, tokens: bytes, extra: bytes = b"") -> bytes:
    """``tokens`` as ``packed`` has them."""
    return blake2b(parent + extra + tokens, digest_size=8).digest()


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as uint32, little-endian. Raises ``OverflowError`` or ``TypeError`` for what is no token id."""
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def number(key: bytes) -> int:
    """As the table has it: never 0, which is an empty place there."""
    return int.from_bytes(key, "little") or 1


def keys_of(
    tokens: bytes, block_size: int, adapter: str = "", salt: bytes = b"", shared: int = 0
) -> list[int]:
    """The keys of a prompt's full blocks, in order. ``tokens`` are ``packed``; ``salt`` begins with the first block
    that the first ``shared`` tokens do not fill."""
    key, keys, size = root_key(adapter), [], block_size * _ID_BYTES
    salted = shared // block_size * size if salt else -1
    for start in range(0, len(tokens) - size + 1, size):
        own = tokens[start : start + size]
        key = blake2b(key + salt + own if start == salted else key + own, digest_size=8).digest()
        keys.append(int.from_bytes(key, "little") or 1)
    return keys


def adapter_key(name: str) -> int:
    """What stands in the table for an adapter that a replica has blocks of."""
    return number(root_key(f"\0adapter {name}"))
