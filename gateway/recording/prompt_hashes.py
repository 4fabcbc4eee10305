"""A prompt's hashes: in blocks, of which prompts that begin alike share the first, and as a whole."""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice

import orjson

from gateway.types import Json

BLOCK_TOKENS = 64
_BLOCK_BYTES = 4 * BLOCK_TOKENS
"""About four bytes of English are a token."""
MAX_BLOCKS = 1024
"""What of a prompt follows these is not told apart."""
_HASH_BYTES = 6
"""Two of a billion different blocks share a hash in one of 300 such collections; a number of JSON holds it exactly."""


def block_hashes(tools: Json, prompt: Json, secret: bytes = b"") -> tuple[int, ...]:
    """A hash for each whole block of the prompt, over it and all before it. ``prompt``: messages, or a text.

    With another ``secret`` (64 bytes at most) the hashes are others: without it no text can be tried against them.
    """
    # Chat templates put the tools first. What closes the list of messages lies in no block that a longer one shares.
    try:
        data = (orjson.dumps(tools) if tools else b"") + orjson.dumps(prompt)
    except (orjson.JSONEncodeError, TypeError):
        return ()
    state = blake2b(key=secret, digest_size=_HASH_BYTES)
    blocks: list[int] = []
    for start in islice(range(0, len(data) - _BLOCK_BYTES, _BLOCK_BYTES), MAX_BLOCKS):
        state.update(data[start : start + _BLOCK_BYTES])
        blocks.append(int.from_bytes(state.digest(), "big"))
    return tuple(blocks)


def key_hash(text: str, secret: bytes = b"") -> str:
    """Of what is to be told apart and not to be read: 16 hex digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), key=secret, digest_size=8).hexdigest()
