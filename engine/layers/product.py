"""The type of a linear layer, whatever its weight format and parallelism."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""[tokens, in] → [tokens, out]"""
