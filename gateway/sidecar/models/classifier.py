"""Text classification models of the transformers library, in place of a shipped head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from threading import Lock
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from gateway.sidecar.models.windows import Span, refuse_longer, windows

_OVERLAP = 32
_LONGEST = 512
"""Tokens of a window, also for models that could take more: a few bad words drown in a long text."""


class TextClassifier:
    """A folder or a hub id. Raises OSError or ValueError if it cannot be loaded."""

    def __init__(self, name: str) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(name, use_fast=True)
        # A fast tokenizer may not be set and used by two threads at once ("Already borrowed").
        self._cutter: Any = deepcopy(self._tokenizer)
        self._encoding, self._cutting = Lock(), Lock()
        self._model: Any = AutoModelForSequenceClassification.from_pretrained(name).eval()
        config = self._model.config
        self._labels = [str(config.id2label[number]) for number in range(config.num_labels)]
        self._many = config.problem_type == "multi_label_classification" or config.num_labels == 1
        limit = min(
            _LONGEST, self._tokenizer.model_max_length, getattr(config, "max_position_embeddings", _LONGEST)
        )
        self._size = max(1, limit - self._tokenizer.num_special_tokens_to_add())
        self._overlap = min(_OVERLAP, self._size // 4)
        self._limit = limit

    def windows(self, text: str, most: int) -> list[Span]:
        """Raises ``SidecarError`` for a text of more than ``most``."""
        refuse_longer(text, self._size, most)
        with self._cutting:
            tokens = self._cutter(
                text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
            )
        spans = [tuple(span) for span in tokens["offset_mapping"]]
        return windows(len(text), spans, tokens.word_ids(), size=self._size, overlap=self._overlap, most=most)

    def classify(self, texts: Sequence[str]) -> list[Mapping[str, float]]:
        """The probability of each label."""
        with self._encoding:
            inputs = self._tokenizer(
                list(texts), padding=True, truncation=True, max_length=self._limit, return_tensors="pt"
            )
        with torch.inference_mode():
            logits = self._model(**inputs).logits.float()
        scores = logits.sigmoid() if self._many else logits.softmax(-1)
        return [dict(zip(self._labels, row, strict=True)) for row in scores.tolist()]
