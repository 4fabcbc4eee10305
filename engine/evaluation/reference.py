"""What the unquantized model predicts, kept in a file: a vocabulary of 150,000 times 10,000 tokens are gigabytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.evaluation.samples import Sample


class Reference:
    """Log-probabilities in float16: those of likely tokens are near 0, where it is finest."""

    def __init__(
        self, samples: Sequence[Sample], vocab: int, predictions: Iterable[Iterator[Tensor]]
    ) -> None:
        self._starts = np.cumsum([0, *(len(sample.tokens) - 1 for sample in samples)])
        self._file = tempfile.TemporaryFile(prefix="tollgate-eval-")  # noqa: SIM115 - closed by ``close``
        self._rows = np.memmap(self._file, np.float16, "w+", shape=(int(self._starts[-1]), vocab))
        for start, pieces in zip(self._starts[:-1], predictions, strict=True):
            row = int(start)
            for logits in pieces:
                stored = logits.log_softmax(-1).half()
                self._rows[row : row + len(logits)] = stored.numpy()
                row += len(logits)

    def rows(self, sample: int, first: int, count: int) -> Tensor:
        """float32 [count, vocab] of the sample of that number, from its row ``first`` on."""
        start = int(self._starts[sample]) + first
        rows = torch.from_numpy(self._rows[start : start + count].astype(np.float32))
        # Rounded they do not sum to one, by which a divergence would be off by more than a good model's is.
        return rows.log_softmax(-1)

    def close(self) -> None:
        del self._rows
        self._file.close()
