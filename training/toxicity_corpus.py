"""All samples as arrays: features of their wording, and the embedder's poolings of their windows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from gateway.guards.evaluation import TOXICITY_CATEGORIES as CATEGORIES
from gateway.guards.evaluation import Ngrams
from gateway.guards.evaluation import ngram_features as features
from gateway.sidecar.models.embedder import BuiltInEmbedder
from training.toxicity_fit import POOLS, Head, fit_fast, fit_head, head_log_odds
from training.toxicity_samples import Sample

MOST_WINDOWS = 64
LEAST = 3
"""Texts that a feature must be in."""
UNKNOWN = float("nan")
WEIGHT = {
    "hatecheck": 1.0,
    "moderation": 2.0,
    "xstest": 1.0,
    "tweets": 0.2,  # labelled by the crowd
    "stormfront": 0.5,
    "germeval": 0.8,
    "cold": 0.8,
    "multilingual": 0.5,
    "questions": 0.3,
    "routing": 0.3,
    "prompts": 0.3,
    "contrasts": 1.0,
    "sentences": 0.8,
    "frames": 0.4,
}


class Embeddings:
    """Poolings by text, in float16. What is in the cache file is not computed again."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._embedder = BuiltInEmbedder()
        self._known: dict[str, np.ndarray] = {}
        if cache is not None and cache.exists():
            with np.load(cache) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["values"], strict=True))

    def windows(self, text: str) -> list[str]:
        return [text[start:end] for start, end in self._embedder.windows(text, MOST_WINDOWS)]

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        keys = [sha1(text.encode()).hexdigest() for text in texts]
        new = sorted(
            {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}.items()
        )
        rows = [self._embedder.pools.index(name) for name in POOLS]
        for start in range(0, len(new), 16):
            part = new[start : start + 16]
            encoded = self._embedder.encode([text for _, text in part])
            for (key, _), encoding in zip(part, encoded, strict=True):
                self._known[key] = encoding[rows].reshape(-1).astype(np.float16)
        if new and self._cache is not None:
            np.savez(self._cache, keys=np.array([*self._known]), values=np.stack([*self._known.values()]))
        return np.stack([self._known[key] for key in keys]).astype(np.float32)


Scores = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Log-odds: of the fast check by text and by window, and of the head by window."""


class Corpus:
    """All samples, and the windows of those that are longer than the embedder's input."""

    def __init__(self, found: Sequence[Sample], embeddings: Embeddings) -> None:
        self.samples = found
        self.texts = [sample.text for sample in found]
        self.source = np.array([sample.source for sample in found])
        self.kind = np.array([sample.kind for sample in found])
        self.language = np.array([sample.language for sample in found])
        self.targets = np.array([[s.labels.get(name, UNKNOWN) for name in CATEGORIES] for s in found])
        self.weight = np.array([WEIGHT[sample.source] for sample in found])
        vectorizer = CountVectorizer(analyzer=features, binary=True, min_df=LEAST, dtype=np.float64)
        self.counts = vectorizer.fit_transform(self.texts)
        self.features = vectorizer.get_feature_names_out()
        parts = [embeddings.windows(text) for text in self.texts]
        self.windows = [window for part in parts for window in part]
        self.owner = np.repeat(np.arange(len(found)), [len(part) for part in parts])
        # All windows of a text have its labels, though one of them may have earned them for all.
        self.window_weight = (self.weight / np.sqrt([len(part) for part in parts]))[self.owner]
        self.x = embeddings(self.windows)

    def train(self, rows: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The fast check and the head, of the samples that ``rows`` (booleans) names."""
        inside = rows[self.owner]
        return (
            fit_fast(self.counts[rows], self.features, self.targets[rows], self.weight[rows]),
            fit_head(self.x[inside], self.targets[self.owner][inside], self.window_weight[inside]),
        )

    def scores(self, fast: Ngrams, head: Head, rows: np.ndarray) -> Scores:
        inside = np.flatnonzero(rows[self.owner])
        return (
            np.array([fast.log_odds(self.texts[index]) for index in np.flatnonzero(rows)]),
            np.array([fast.log_odds(self.windows[index]) for index in inside]),
            head_log_odds(head, self.x[inside]),
        )
