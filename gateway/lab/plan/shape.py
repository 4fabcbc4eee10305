"""What of a model decides memory and time: its weights, and what each layer keeps of a token.

Parameters are counted as in a checkpoint, biases and norms left out, which are less than 0.1 % of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention as all layers of the model have it."""

    heads: int
    kv_heads: int
    head_dim: int
    """Of a key; of the one shared key that carries the rotation where there is a latent."""
    latent: int | None = None
    """Size of a token's latent (multi-head latent attention, https://arxiv.org/abs/2405.04434), one for all heads."""

    @property
    def kept(self) -> int:
        """Numbers that a layer keeps of a token: keys and values of all KV heads, or the latent and its key."""
        if self.latent is not None:
            return self.latent + self.head_dim
        return 2 * self.kv_heads * self.head_dim

    @property
    def pair_flops(self) -> int:
        """Of one query and one key, in all heads: a product for the score, and one for the value."""
        if self.latent is not None:
            return 2 * self.heads * (2 * self.latent + self.head_dim)
        return 4 * self.heads * self.head_dim

    def kept_on_rank(self, ranks: int) -> int:
        """KV heads are shared by the ranks as long as there are enough; a latent every rank has."""
        if self.latent is not None:
            return self.kept
        return 2 * max(1, -(-self.kv_heads // ranks)) * self.head_dim


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts in place of some layers' MLP."""

    count: int
    chosen: int
    """Of a token, in each layer."""
    layers: int
    expert: int
    """Parameters of one."""

    @property
    def total(self) -> int:
        return self.layers * self.count * self.expert

    @property
    def active(self) -> int:
        return self.layers * self.chosen * self.expert


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    hidden: int
    layers: int
    """All of them."""
    windows: tuple[int | None, ...]
    """Of each layer that keeps keys and values: tokens that a token sees; ``None``: all before it."""
    attention: Attention
    embedding: int
    """Parameters that are looked up and not multiplied; the head's, where both are one."""
    head: int
    """Parameters of the head."""
    dense: int
    """All other parameters that every token goes through."""
    tied: bool = False
    """Whether head and embedding are the same."""
    mixture: Mixture | None = None
    state_values: int = 0
    """Numbers that layers keep of a request whatever its length, in the compute dtype,"""
    state_sums: int = 0
    """and in float32."""
    longest: int = 0
    """Tokens of the longest context; 0: not known."""
    dtype: str = "bf16"
    """What it was trained in, or is stored in."""
    stored: str | None = None
    """The quantization that the checkpoint has; ``None``: none."""
    stored_bytes: int | None = None
    """Bytes of its weights as they are stored, where the files tell."""

    @property
    def parameters(self) -> int:
        found = self.embedding + (0 if self.tied else self.head) + self.dense
        return found + (self.mixture.total if self.mixture else 0)

    @property
    def active(self) -> int:
        """Parameters that a token is multiplied with, the head included."""
        return self.head + self.dense + (self.mixture.active if self.mixture else 0)

    @property
    def window_counts(self) -> Sequence[tuple[int | None, int]]:
        """How many layers see how much, by kind."""
        return list(Counter(self.windows).items())

    def kv_bytes(self, tokens: int, kv_bytes_each: float, ranks: int = 1) -> float:
        """Keys and values of one request on one rank, without the blocks that it fills in part."""
        per_layer = self.attention.kept_on_rank(ranks) * kv_bytes_each
        seen = sum(
            count * (tokens if window is None else min(tokens, window))
            for window, count in self.window_counts
        )
        return seen * per_layer

    def state_bytes(self, compute_bytes: float) -> float:
        """Of one request, beside its keys and values."""
        return self.state_values * compute_bytes + self.state_sums * 4
