"""What vLLM's publisher sends, in both of its forms, and SGLang's."""

from __future__ import annotations

from typing import Any

import msgpack

Extra = list[Any] | None


def stored(
    hashes: list[Any],
    parent: Any,
    tokens: list[int],
    size: int = 4,
    *,
    lora: str | None = None,
    extras: list[Extra] | None = None,
    medium: str | None = "GPU",
) -> list[Any]:
    event: list[Any] = ["BlockStored", hashes, parent, tokens, size, None, medium, lora]
    return event if extras is None else [*event, extras]


def removed(*hashes: Any, medium: str | None = "GPU") -> list[Any]:
    return ["BlockRemoved", list(hashes), medium]


CLEARED: list[Any] = ["AllBlocksCleared"]


def batch(number: int, *events: Any, time: float | None = None) -> list[bytes]:
    """The frames of message ``number``."""
    payload = msgpack.packb([float(number) if time is None else time, list(events), 0])
    return [b"", number.to_bytes(8, "big"), payload]
