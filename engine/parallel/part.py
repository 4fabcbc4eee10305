"""What of a model a rank has."""

from __future__ import annotations

from dataclasses import dataclass

from engine.parallel.group import SINGLE_RANK, TPGroup
from engine.parallel.layout import WHOLE, Stage


@dataclass(frozen=True, slots=True)
class Part:
    tp: TPGroup = SINGLE_RANK
    """The ranks of its stage, and its place among them."""
    stage: Stage = WHOLE
    experts: bool = False
    """Whether the stage's ranks have some experts each, and not a shard of each expert."""
    vocabulary: bool = False
    """Whether the embedding and the output head are sharded by tokens, where their number allows it."""


WHOLE_MODEL = Part()
