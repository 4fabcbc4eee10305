"""What layers may have in place of attention: each keeps a state of a request in place of its keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UnsupportedModel
from engine.state_cache import StateTensor


@dataclass(frozen=True, slots=True)
class ShortConvMixer:
    """``layers/short_conv.py``."""

    kernel: int
    channels: int
    bias: bool = False

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)

    @property
    def state(self) -> tuple[StateTensor, ...]:
        return (StateTensor((self.kernel - 1, self.channels)),)


@dataclass(frozen=True, slots=True)
class GatedDeltaMixer:
    """``layers/gated_delta.py``."""

    kernel: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    joint: bool
    """Whether the checkpoint has what belongs to one key head side by side, in two tensors; else in four."""

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        if self.value_heads % self.key_heads:
            raise UnsupportedModel(
                f"linear_num_value_heads ({self.value_heads}) is no multiple of linear_num_key_heads "
                f"({self.key_heads})."
            )

    @property
    def channels(self) -> int:
        """That go through the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state(self) -> tuple[StateTensor, ...]:
        matrices = StateTensor((self.value_heads, self.key_dim, self.value_dim), exact=True)
        return StateTensor((self.kernel - 1, self.channels)), matrices


@dataclass(frozen=True, slots=True)
class Mamba2Mixer:
    """``layers/mamba2.py``."""

    kernel: int
    heads: int
    head_dim: int
    groups: int
    """Of heads that have B and C in common."""
    size: int
    """Of the state, for each of a head's dimensions."""
    bias: bool = False
    conv_bias: bool = True

    def __post_init__(self) -> None:
        _check_kernel(self.kernel)
        if self.heads % self.groups:
            raise UnsupportedModel(
                f"mamba_n_heads ({self.heads}) is no multiple of mamba_n_groups ({self.groups})."
            )

    @property
    def channels(self) -> int:
        """That go through the convolution: values, B and C."""
        return self.heads * self.head_dim + 2 * self.groups * self.size

    @property
    def state(self) -> tuple[StateTensor, ...]:
        matrices = StateTensor((self.heads, self.size, self.head_dim), exact=True)
        return StateTensor((self.kernel - 1, self.channels)), matrices


Mixer = ShortConvMixer | GatedDeltaMixer | Mamba2Mixer


def _check_kernel(kernel: int) -> None:
    if kernel < 2:
        raise UnsupportedModel(f"A convolution over {kernel} tokens is not supported: over 2 or more is.")
