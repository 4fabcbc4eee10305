"""Rotary embeddings: the frequency of each pair of dimensions, and the scalings that extend a context."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """Raises ``UnsupportedModel`` for an unknown scaling, or one that lacks a value.

    ``scaling`` is config.json's ``rope_scaling``. The ``dynamic`` kind changes only past ``positions``, which no
    request exceeds, so it is treated as ``default``."""

    dim: int
    """Dimensions of a head that are rotated."""
    theta: float
    positions: int
    """The longest context that the model supports."""
    original_positions: int
    """The longest context before it was extended."""
    scaling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise UnsupportedModel(
                f"rope_scaling of type {self.kind!r} is not supported; these are: {', '.join(_KINDS)}."
            )
        try:
            self.frequencies(self.original_positions)
            self.frequencies(self.original_positions + 1)
            self.attention_scaling()
        except KeyError as error:
            raise UnsupportedModel(f"rope_scaling of type {self.kind!r} lacks {error}.") from error

    @property
    def kind(self) -> str:
        kind = self.scaling.get("rope_type") or self.scaling.get("type") or "default"
        # Early Phi-3 checkpoints use other names for longrope.
        return "longrope" if kind == "su" or (kind == "yarn" and "long_factor" in self.scaling) else kind

    @property
    def query_growth(self) -> float:
        """By how much queries grow with the logarithm of the context's length beyond the original one."""
        return float(self.scaling.get("llama_4_scaling_beta") or 0.0)

    def frequencies(self, length: int) -> Tensor:
        """Radians per position, float32 [dim / 2], for contexts of up to ``length`` tokens."""
        powers = torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim
        base = 1.0 / self.theta**powers
        match self.kind:
            case "linear":
                return base / float(self.scaling["factor"])
            case "llama3":
                return self._llama3(base)
            case "yarn":
                return self._yarn(base)
            case "longrope":
                name = "long_factor" if length > self.original_positions else "short_factor"
                factors = torch.tensor(self.scaling[name], dtype=torch.float32)
                if len(factors) != len(base):
                    raise UnsupportedModel(
                        f"rope_scaling.{name} has {len(factors)} values; it needs {len(base)}."
                    )
                return 1.0 / (factors * self.theta**powers)
        return base

    def attention_scaling(self, length: int = 0) -> float:
        """The factor on cosines and sines (``attention_factor``), for contexts of up to ``length`` tokens."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        # Phi-MoE has one for short contexts, and another for long ones.
        given = "long_mscale" if length > self.original_positions else "short_mscale"
        if self.kind == "longrope" and self.scaling.get(given) is not None:
            return float(self.scaling[given])
        if (given := self.scaling.get("attention_factor")) is not None:
            return float(given)
        factor = self._factor()
        if self.kind == "longrope":
            return math.sqrt(1 + math.log(factor) / math.log(self.original_positions)) if factor > 1 else 1.0
        above, below = self.scaling.get("mscale"), self.scaling.get("mscale_all_dim")
        if above and below:
            return _yarn_scale(factor, above) / _yarn_scale(factor, below)
        return _yarn_scale(factor, 1.0)

    def score_scaling(self) -> float:
        """The factor on scores where YaRN stretches all dimensions (``mscale_all_dim``), as DeepSeek has it."""
        stretched = self.scaling.get("mscale_all_dim") if self.kind != "default" else None
        return _yarn_scale(self._factor(), float(stretched)) ** 2 if stretched else 1.0

    def _factor(self) -> float:
        return float(self.scaling.get("factor") or self.positions / self.original_positions)

    def _llama3(self, base: Tensor) -> Tensor:
        """Llama 3.1: slow turns are interpolated further, fast ones are kept, those between are blended."""
        low, high = float(self.scaling["low_freq_factor"]), float(self.scaling["high_freq_factor"])
        turns = self.original_positions * base / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return kept * base + (1 - kept) * base / float(self.scaling["factor"])

    def _yarn(self, base: Tensor) -> Tensor:
        """YaRN (https://arxiv.org/abs/2309.00071): as Llama 3.1, blended by dimension."""

        def dimension(turns: float) -> float:
            return (
                self.dim
                * math.log(self.original_positions / (turns * 2 * math.pi))
                / (2 * math.log(self.theta))
            )

        low = dimension(float(self.scaling.get("beta_fast") or 32))
        high = dimension(float(self.scaling.get("beta_slow") or 1))
        if self.scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        width = high - low or 0.001
        interpolated = ((torch.arange(len(base), dtype=torch.float32) - low) / width).clamp(0, 1)
        return base / self._factor() * interpolated + base * (1 - interpolated)


class RotaryTable:
    """Cosines and sines of the first ``length`` positions."""

    def __init__(self, rope: Rope, length: int, device: torch.device, dtype: torch.dtype) -> None:
        angles = torch.outer(torch.arange(length, dtype=torch.float32), rope.frequencies(length))
        scale = rope.attention_scaling(length)
        self._cos = (angles.cos() * scale).to(device, dtype)
        self._sin = (angles.sin() * scale).to(device, dtype)

    def __call__(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Cosines and sines of ``positions`` int64 [tokens], each repeated for both halves: [tokens, 1, dim]."""
        cos, sin = self._cos[positions], self._sin[positions]
        return torch.cat([cos, cos], -1)[:, None], torch.cat([sin, sin], -1)[:, None]


class ScalingRotaryTable(RotaryTable):
    """With a third table: the factor on the query at each position, which grows with the length of the context."""

    def __init__(self, rope: Rope, length: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(rope, length, device, dtype)
        beta, lengths = rope.query_growth, torch.arange(length) // rope.original_positions
        self._factors = (1 + beta * torch.log1p(lengths.float())).to(device, dtype)

    def __call__(self, positions: Tensor) -> tuple[Tensor, ...]:
        return *super().__call__(positions), self._factors[positions][:, None, None]


class ScaledRotation:
    """A rotation whose queries, the first ``heads``, are multiplied by the factors of a ``ScalingRotaryTable``."""

    def __init__(self, rotate: Callable[..., Tensor], heads: int) -> None:
        self._rotate = rotate
        self._heads = heads

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, factors: Tensor) -> Tensor:
        rotated = self._rotate(x, cos, sin)
        rotated[:, : self._heads] *= factors
        return rotated


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much queries grow with their position: by ``1 + scale * log(1 + floor((position + 1) / step))``."""

    scale: float
    step: int

    def factors(self, length: int) -> Tensor:
        """Of each position, float32."""
        return 1 + self.scale * torch.log1p((torch.arange(1, length + 1) // self.step).float())


class NoRotation:
    """In place of a ``RotaryTable``: each position is turned by zero."""

    def __init__(self, dim: int, device: torch.device, dtype: torch.dtype) -> None:
        self._cos = torch.ones(1, 1, dim, device=device, dtype=dtype)
        self._sin = torch.zeros_like(self._cos)

    def __call__(self, positions: Tensor) -> tuple[Tensor, ...]:
        shape = (len(positions), -1, -1)
        return self._cos.expand(shape), self._sin.expand(shape)


class GrowingNoRotation(NoRotation):
    """With a third table: the factor on the query at each position."""

    def __init__(
        self, dim: int, growth: Growth, length: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(dim, device, dtype)
        self._factors = growth.factors(length).to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, ...]:
        return *super().__call__(positions), self._factors[positions][:, None, None]


def _yarn_scale(factor: float, by: float) -> float:
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0
