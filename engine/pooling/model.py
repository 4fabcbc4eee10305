"""Loads an embedding model or a reranker, and runs batches of texts through it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.models.builder import LayerBuilder
from engine.models.config import Raw
from engine.models.registry import FAMILIES, read_config, read_family
from engine.pooling import heads
from engine.pooling.bert import Bert, bert, roberta
from engine.pooling.headless import HeadlessDecoder
from engine.pooling.modernbert import ModernBert
from engine.pooling.parts import Encoder
from engine.pooling.pooler import Pooler
from engine.pooling.spec import ENCODERS, PoolingSpec
from engine.pooling.texts import Texts
from engine.weights.formats import detect_format
from engine.weights.progress import progress
from engine.weights.safetensors import SafetensorsReader
from engine.weights.weight_loader import WeightLoader

_UNUSED = ("cls.", "lm_head.", "head.", "decoder.", "pooler.", "bert.pooler.", "roberta.pooler.")
"""Heads of what was trained before, which embeddings do without."""


class PoolingModel:
    """Raises ``ModelUnavailable`` or ``UnsupportedModel``."""

    def __init__(
        self,
        folder: Path,
        spec: PoolingSpec,
        device: torch.device,
        dtype: torch.dtype,
        *,
        max_model_len: int | None = None,
        quantization: str | None = None,
        invariant: bool = False,
    ) -> None:
        raw = read_config(folder)
        self.device = device
        reader = SafetensorsReader(folder, device, dtype)
        weights = WeightLoader(
            reader, device, dtype, quantization=quantization, quantized_format=detect_format(raw)
        )
        build = LayerBuilder(weights, invariant=invariant)
        with progress(reader.total_bytes) as reader.on_read:
            try:
                self.encoder = _encoder(spec, raw, build, max_model_len)
                self._head = _head(spec, folder, raw, build, self.encoder) if spec.task == "score" else None
            except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise UnsupportedModel(f"config.json holds a value that makes no sense: {error}.") from error
        for name in _UNUSED:
            weights.ignore(name)
        weights.finish()
        self._pooler = Pooler(spec, folder, self.encoder.width, device) if spec.task == "embed" else None
        self.width = 1 if self._pooler is None else self._pooler.width
        """Numbers that a text becomes."""

    @torch.inference_mode()
    def run(
        self, rows: Sequence[list[int]], firsts: Sequence[int], sizes: Sequence[int | None]
    ) -> list[Tensor]:
        """What each text becomes, float32 on the CPU: a vector, or the logit of a pair.

        ``rows`` are token ids, best in the order of their lengths; ``firsts``: as in ``Texts.of``; ``sizes``: as in
        ``Pooler``."""
        texts = Texts.of(rows, firsts, self.device)
        hidden = self.encoder.forward(texts)
        if self._pooler is not None:
            return [vector.cpu() for vector in self._pooler(hidden, texts, sizes)]
        if self._head is None:
            raise ValueError("a model without a task")
        return list(self._head(hidden, texts).float().cpu()[:, None])


def _encoder(spec: PoolingSpec, raw: Raw, build: LayerBuilder, length: int | None) -> Encoder:
    match spec.family:
        case "Bert":
            return bert(raw, build)
        case "Roberta" | "XLMRoberta":
            return roberta(raw, build)
        case "ModernBert":
            return ModernBert(raw, build, length)
    name = f"{spec.family}ForCausalLM"
    if name not in FAMILIES:
        raise UnsupportedModel(
            f"The architecture {spec.family or '(config.json names none)'} is not supported for embeddings and ranks; "
            f"these are: {', '.join(ENCODERS)}, and of decoders those of {', '.join(FAMILIES)}."
        )
    return HeadlessDecoder(read_family(name, raw), build, length)


def _head(spec: PoolingSpec, folder: Path, raw: Raw, build: LayerBuilder, encoder: Encoder) -> heads.Head:
    if isinstance(encoder, HeadlessDecoder):
        if spec.verdict is not None:
            return heads.verdict(spec, folder, raw, build, encoder)
        return heads.last_token(build, encoder.width)
    if isinstance(encoder, ModernBert):
        return heads.modernbert(raw, build)
    if not isinstance(encoder, Bert):
        raise TypeError(f"{type(encoder).__name__} has no head")
    if spec.family == "Bert":
        return heads.first_token(build, encoder.width, f"{encoder.prefix}pooler.dense", "classifier")
    return heads.first_token(build, encoder.width, "classifier.dense", "classifier.out_proj")
