"""What a linear layer is to those who use it, however its weights are kept and on however many ranks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""[tokens, in] → [tokens, out]"""
