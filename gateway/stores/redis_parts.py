"""A cluster in parts: each is used like a server of its own, found by the slot that its keys share.

What one script touches lies in one slot, so a cluster of any size is so many parts, spread evenly over its slots: of
three servers each has four, of six two. A part whose server is away, or has lost its data, is no matter of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar
from zlib import crc32

from gateway.redis_address import RedisAddress

T = TypeVar("T")

TAGS = (
    *("tollgate-820", "tollgate-757", "tollgate-441", "tollgate-796", "tollgate-480", "tollgate-440"),
    *("tollgate-18", "tollgate-840", "tollgate-376", "tollgate-411", "tollgate-707", "tollgate-870"),
)
"""Hash tags in the order of their slots, 1,365 from one to the next. To change one is to lose what is counted there."""


def prefixes(url: str, use: str, alone: str) -> list[str]:
    """What the keys of each part begin with; ``alone`` where ``url`` is no cluster's."""
    if RedisAddress.parse(url).kind != "cluster":
        return [alone]
    return [f"{{{tag}}}:{use}:" for tag in TAGS]


def part_of(name: str, parts: Sequence[T]) -> T:
    """The one that has ``name``, for every gateway the same."""
    return parts[crc32(name.encode(errors="surrogatepass")) % len(parts)] if len(parts) > 1 else parts[0]


def by_part(names: Iterable[str], parts: Sequence[T]) -> dict[int, list[str]]:
    """``names`` by the index of the part that has them."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    numbers = range(len(parts))
    for name in names:
        found[part_of(name, numbers)].append(name)
    return found
