"""Which rank has which part of the model.

Layers are divided over stages (pipeline parallelism), and each stage's layers over as many ranks (tensor parallelism):
rank ``stage * tensor + shard``. So the ranks of a stage, which exchange most, are neighbours, and on several hosts of
equal size they are on the same one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    tensor: int = 1
    """Ranks of a stage."""
    pipeline: int = 1
    """Stages."""

    @property
    def size(self) -> int:
        return self.tensor * self.pipeline

    def stage(self, rank: int) -> int:
        return rank // self.tensor

    def shard(self, rank: int) -> int:
        """Its number in its stage."""
        return rank % self.tensor


@dataclass(frozen=True, slots=True)
class Stage:
    """Some of a model's layers, one behind another. The first stage has the embedding, too, and the head with the norm
    before it: the last stage's output comes back to it, so that a tied head is no second copy, and what samples is
    where requests are planned."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.index == 0

    def layers(self, count: int) -> range:
        """This stage's of a model's ``count`` layers. The last stages have one more where they cannot be equal: the
        first has the head. There may be none for a stage if there are fewer layers than stages."""
        return range(self.index * count // self.count, (self.index + 1) * count // self.count)


WHOLE = Stage()
