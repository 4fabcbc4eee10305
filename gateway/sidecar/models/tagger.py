"""Names, places, organisations and addresses: a small network over the words of the built-in embedder.

For each word the encoder's hidden states of a few layers, averaged over its tokens, and the word's form in the text,
which the tokenizer drops (capitals, line breaks, digits). Two convolutions over five words each see eight around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gateway.findings import Finding
from gateway.sidecar.models.windows import Span

Floats = NDArray[np.float32]

WEIGHTS = Path(__file__).parents[1] / "heads" / "entities.zip"
KERNEL = 5
"""Words that a convolution sees."""
LEAST = 0.2
"""Spans that are less probable are none. A guard has a threshold of its own."""

_KINDS = ((12, ","), (13, "."), (14, "/-#"), (15, "@_"), (16, ":;()[]\"'"))
SHAPES = 24
"""Numbers that say what form a word has."""


class Tagger:
    """Read from an ``.npz`` of arrays ``layers``, ``labels``, ``mean``, ``scale``, and ``w``, ``b`` of each layer.

    Raises OSError, KeyError or ValueError.
    """

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        def floats(name: str) -> Floats:
            return np.asarray(arrays[name], dtype=np.float32)

        self.layers = tuple(int(layer) for layer in arrays["layers"])
        self.labels = tuple(str(label) for label in arrays["labels"])
        self._mean, self._scale = floats("mean"), floats("scale")
        self._in = floats("w0"), floats("b0")
        self._convolutions = [(floats(f"w{at}"), floats(f"b{at}")) for at in (1, 2)]
        self._out = floats("w3"), floats("b3")
        if self._out[0].shape[1] != 1 + 2 * len(self.labels):
            raise ValueError(f"{self._out[0].shape[1]} outputs for {len(self.labels)} labels")

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Tagger:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(dict(arrays))

    def find(self, text: str, words: Sequence[Span], states: Floats) -> list[Finding]:
        """``states`` are ``[words, layers × width]``. In the text's order, without overlaps."""
        if not words:
            return []
        chances = self.chances(states, shapes(text, words))
        return spans(chances, words, self.labels)

    def chances(self, states: Floats, forms: Floats) -> Floats:
        """``[words, 1 + 2 × labels]``: of none, and of the beginning and the inside of each label."""
        x = np.concatenate(((states - self._mean) / self._scale, forms), 1)
        x = np.maximum(_product(x, self._in[0]) + self._in[1], 0)
        for weights, bias in self._convolutions:
            padded = np.pad(x, ((KERNEL // 2, KERNEL // 2), (0, 0)))
            seen = sum(_product(padded[at : at + len(x)], weights[at]) for at in range(KERNEL))
            x = x + np.maximum(seen + bias, 0)
        odds = _product(x, self._out[0]) + self._out[1]
        odds = np.exp(odds - odds.max(1, keepdims=True))
        chances: Floats = odds / odds.sum(1, keepdims=True)
        return chances


def _product(x: Floats, weights: Floats) -> Floats:
    """By torch, which uses the sidecar's ``threads``; numpy's own would take all cores, and wait for each other."""
    product: Floats = torch.mm(torch.from_numpy(x), torch.from_numpy(weights)).numpy()
    return product


def spans(chances: Floats, words: Sequence[Span], labels: Sequence[str]) -> list[Finding]:
    """Words that are more likely something than ``LEAST``, joined where they go on."""
    found: list[Finding] = []
    scores: list[float] = []
    last = -1
    """The label of the word before; -1: none."""
    for (start, end), row in zip(words, chances, strict=True):
        something = 1.0 - float(row[0])
        if something < LEAST:
            last = -1
            continue
        pairs = row[1:].reshape(-1, 2)
        label = int(pairs.sum(1).argmax())
        if label == last and pairs[label, 1] >= pairs[label, 0]:
            scores.append(something)
            begin = found.pop().start
        else:
            scores, begin = [something], start
        found.append(Finding(labels[label], begin, end, round(sum(scores) / len(scores), 4)))
        last = label
    return found


def shapes(text: str, words: Sequence[Span]) -> Floats:
    """``[words, SHAPES]`` of 0 and 2."""
    forms = np.zeros((len(words), SHAPES), np.float32)
    before = 0
    for form, (start, end) in zip(forms, words, strict=True):
        word, gap = text[start:end], text[before:start]
        before = end
        letters = word.isalpha()
        form[:5] = (
            word.islower(),
            letters and word.istitle(),
            len(word) > 1 and word.isupper(),
            letters and not (word.islower() or word.isupper() or word.istitle()),
            len(word) == 1 and word.isupper(),
        )
        if word.isdigit():
            form[5 + min(len(word), 6)] = 1
        else:
            form[5] = any(map(str.isdigit, word))
        for place, signs in _KINDS:
            form[place] = word in signs
        form[17:] = (
            not word.isascii(),
            not gap,
            "\n" in gap,
            start == 0,
            len(word) <= 3,
            len(word) >= 8,
            len(word) == 2 and word.isupper(),
        )
    return forms * 2
