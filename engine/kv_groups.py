"""Layers in groups, each with block tables of its own, over one pool of blocks of equal size.

As in vLLM's hybrid KV cache manager (https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager/): all groups have
as many layers, so a block of the pool has room for one group's layers, whichever, and what one kind of layers does not
need the others get. A model whose layers are all of one kind has one group, and a block holds all its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PADDING = 6
"""A kind's last group may lack up to one in so many of its layers: memory for nothing, but fewer tables a step."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers of one kind. A kind is what a request has to keep for its next token: all tokens, or those of a window.

    A latent in place of heads is none: layers that have one keep it for the same tokens (``KVShape.latent``). Layers
    with a state in place of tokens are in no group, and have no blocks: ``state_cache.py``.
    """

    layers: tuple[int, ...]
    """By their number in the model, each with the same tensors as the layer at its place in every other group."""
    window: int | None = None
    """Tokens that a token sees, itself included; ``None``: all before it."""


def group_layers(windows: Sequence[int | None], longest: int) -> tuple[KVGroup, ...]:
    """Groups of equal size, those that see everything first. ``windows``: each layer's; ``longest``: tokens of the
    longest sequence, beyond which a window is none."""
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(None if window is None or window >= longest else window, []).append(layer)
    size = _group_size([len(layers) for layers in kinds.values()])
    groups = [
        KVGroup(tuple(layers[first : first + size]), window)
        for window, layers in kinds.items()
        for first in range(0, len(layers), size)
    ]
    return tuple(sorted(groups, key=lambda group: group.window is not None))


def _group_size(counts: Sequence[int]) -> int:
    """The largest that leaves few places in a kind's last group empty."""
    fits = (
        size
        for size in range(max(counts, default=1), 0, -1)
        if all(-count % size * _PADDING <= count for count in counts)
    )
    return next(fits, 1)
