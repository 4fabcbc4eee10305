"""Who gets what in an experiment: the same key always the same arm, and those who have the new one keep it as it grows.

Weighted rendezvous hashing, by Schindelhauer and Schomaker's logarithmic method (2005,
https://doi.org/10.1145/1073970.1074008): each arm draws a distance from the experiment's name and the key, at the rate
of its weight, and the nearest has the key. A weight that grows brings its arm nearer to every key and moves no other,
so that keys only ever come to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b

CONTROL, NEW = "control", "new"
"""The arms of a roll-out: the targets as they are, and the one that is rolled out."""


def arm_of(experiment: str, key: bytes, weights: Mapping[str, float]) -> str:
    """The arm of ``key`` among those with a weight above 0; there is at least one."""
    return min(
        (arm for arm, weight in weights.items() if weight > 0),
        key=lambda arm: _distance(experiment, arm, key) / weights[arm],
    )


def is_new(experiment: str, key: bytes, share: float) -> bool:
    """Whether ``key`` is among the ``share`` (0 to 1) that a roll-out has reached."""
    return arm_of(experiment, key, {NEW: share, CONTROL: 1.0 - share}) == NEW


def _distance(experiment: str, arm: str, key: bytes) -> float:
    digest = blake2b(f"{experiment}\0{arm}\0".encode() + key, digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "big") + 1) / 2**64)
