"""KV cache events as vLLM and SGLang publish them: what was stored, removed, cleared.

A message of the publisher is three frames: topic, sequence number (8 bytes, big-endian), and a batch in msgpack. Up to
vLLM 0.19, and in SGLang, structs are arrays of their fields with the type's name before them; later ones are maps:

    [ts, [["BlockStored", hashes, parent, tokens, block_size, lora_id, medium, lora_name, extra_keys, …], …], rank]
    {"ts": …, "events": [{"type": "BlockStored", "block_hashes": …}, …], "data_parallel_rank": …}

Fields at the end are left out where they have their default, and new versions add some: both are taken as they come.
Hashes are integers or bytes, by version and option.

https://docs.vllm.ai/en/stable/api/vllm/distributed/kv_events/
https://github.com/sgl-project/sglang, python/sglang/srt/disaggregation/kv_events.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

GPU = "GPU"
MOST_BYTES = 4 * 2**20
"""Of a batch; a larger one is no batch. One has the blocks of a step: 64,000 tokens take 400 KB."""
_MOST_OBJECTS = 2**17
"""Lists and maps in a batch. A byte of it makes 60 of memory where it is an empty one."""
_STORED = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx", "kv_cache_spec_kind"),
)
_REMOVED = ("block_hashes", "medium", "group_idx")


class Unreadable(ValueError):
    """It is no batch of events."""


class Stored(NamedTuple):
    """Blocks that follow one another."""

    hashes: Sequence[int]
    parent: int | None
    """The hash of the block before them; None at the beginning of a prompt."""
    tokens: Sequence[int]
    """Of all of them; empty where they were only copied to another medium."""
    block_size: int
    adapter: str | None
    """None: it has a number, and no name."""
    extras: Sequence[bytes]
    """Of each block, what else makes it another one; empty where no block has anything."""
    medium: str = GPU
    group: int = 0
    whole: bool = True
    """Whether its layers see the whole prompt, and not only a window of it."""


class Removed(NamedTuple):
    hashes: Sequence[int]
    medium: str = GPU
    group: int = 0


class Cleared(NamedTuple):
    """Nothing is left."""


Event = Stored | Removed | Cleared


class Batch(NamedTuple):
    time: float
    """Of the publisher's clock, in seconds."""
    events: Sequence[Event]
    """In order; types that are not known are left out."""


def read_batch(payload: bytes) -> Batch:
    """Raises ``Unreadable``."""
    import msgpack

    if len(payload) > MOST_BYTES:
        raise Unreadable(f"{len(payload)} bytes are too many for a batch of events")
    objects = 0

    def counted(found: Any) -> Any:
        nonlocal objects
        objects += 1
        if objects > _MOST_OBJECTS:
            raise ValueError(f"it has more than {_MOST_OBJECTS:,} lists and maps")
        return found

    try:
        batch = msgpack.unpackb(
            payload,
            strict_map_key=False,
            unicode_errors="surrogateescape",
            list_hook=counted,
            object_hook=counted,
        )
    # Its tree of errors is not one: damaged bytes end in any of these.
    except (
        ValueError,
        TypeError,
        msgpack.UnpackException,
        RecursionError,
        OverflowError,
        MemoryError,
    ) as error:
        raise Unreadable(f"it is no msgpack: {error!r}") from None
    if isinstance(batch, list):
        batch = dict(zip(("ts", "events"), batch, strict=False))
    if not isinstance(batch, Mapping) or not isinstance(events := batch.get("events"), list):
        raise Unreadable("it has no list of events")
    ts = batch.get("ts")
    if isinstance(ts, bool) or not isinstance(ts, int | float):
        raise Unreadable("it has no time")
    return Batch(ts, [event for found in events if (event := _event(found)) is not None])


def _event(found: Any) -> Event | None:
    if isinstance(found, Mapping):
        kind, fields = found.get("type"), found
    elif isinstance(found, list) and found:
        kind = found[0]
        names = _STORED if kind == "BlockStored" else _REMOVED
        fields = dict(zip(names, found[1:], strict=False))
    else:
        raise Unreadable("an event is neither a list nor a map")
    match kind:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            return Removed(_hashes(fields), _medium(fields), _count(fields, "group_idx"))
        case "AllBlocksCleared":
            return Cleared()
    return None


def _stored(fields: Mapping[Any, Any]) -> Stored:
    hashes, parent = _hashes(fields), fields.get("parent_block_hash")
    tokens = fields.get("token_ids") or []
    if not isinstance(tokens, list):
        raise Unreadable("token_ids are no list")
    name, numbered = fields.get("lora_name"), fields.get("lora_id") is not None
    adapter = name if isinstance(name, str) else None if numbered else ""
    kind = fields.get("kv_cache_spec_kind")
    return Stored(
        hashes,
        None if parent is None else _hash(parent),
        tokens,
        _count(fields, "block_size"),
        adapter,
        tuple(_extras(fields.get("extra_keys"), adapter)),
        _medium(fields),
        _count(fields, "group_idx"),
        # full_attention, sink_full_attention, mla_attention; not sliding_window, chunked_local_attention, mamba.
        kind is None or str(kind).endswith(("full_attention", "mla_attention")),
    )


def _hashes(fields: Mapping[Any, Any]) -> list[int]:
    found = fields.get("block_hashes")
    if not isinstance(found, list):
        raise Unreadable("block_hashes are no list")
    return [_hash(one) for one in found]


def _hash(found: Any) -> int:
    """64 bits of it are enough to tell the blocks of one server apart."""
    if isinstance(found, int):
        return found
    if isinstance(found, bytes):
        return int.from_bytes(found[-8:], "big")
    raise Unreadable(f"{found!r:.40} is no hash of a block")


def _extras(found: Any, adapter: str | None) -> Iterator[bytes]:
    """What each block has beside its tokens; the adapter, which is in all of them, is not repeated."""
    if not isinstance(found, list) or not any(found):
        return
    for block in found:
        more = [*block] if isinstance(block, list) else [] if block is None else [block]
        if adapter and more and more[0] == adapter:
            del more[0]
        if len(more) == 1 and isinstance(more[0], str):  # as a salt alone is
            yield more[0].encode("utf-8", "surrogateescape")
        else:
            yield repr(more).encode("utf-8", "surrogateescape") if more else b""


def _medium(fields: Mapping[Any, Any]) -> str:
    found = fields.get("medium")
    return found if isinstance(found, str) else GPU


def _count(fields: Mapping[Any, Any], name: str) -> int:
    found = fields.get(name)
    if found is None:
        return 0
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise Unreadable(f"{found!r:.40} is no {name}")
    return found
