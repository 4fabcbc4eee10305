"""Who predicts: transformers in float32, the engine, and llama.cpp.

Each yields, text by text, logits in float32 [tokens - 1, vocabulary].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.real_weights.texts import Text
from engine.evaluation.samples import Sample
from engine.evaluation.ways import Way, predict
from engine.models.registry import load_model


@torch.inference_mode()
def transformers(folder: Path, texts: Sequence[Text]) -> Iterator[Tensor]:
    from transformers import AutoModelForCausalLM

    found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for text in texts:
        yield found(torch.tensor([text.tokens[:-1]]), use_cache=False).logits[0].float()


def engine(folder: Path, way: Way, texts: Sequence[Text]) -> Iterator[Tensor]:
    """The engine's model alone, a text at once."""
    model = load_model(folder, torch.device("cpu"), way.dtype, quantization=way.quantization)
    for pieces in predict(model, [Sample(text.tokens) for text in texts], way):
        yield torch.cat(list(pieces))


def llama_cpp(model: Path, texts: Sequence[Text], threads: int) -> Iterator[Tensor]:
    """Raises ``SystemExit`` where its package is missing, or where it reads a text as other tokens than these."""
    try:
        from llama_cpp import Llama
    except ImportError as error:
        raise SystemExit(
            "llama.cpp is compared by its Python package: pip install llama-cpp-python"
        ) from error
    longest = max(len(text.tokens) for text in texts)
    found = Llama(
        str(model),
        n_ctx=longest,
        n_batch=longest,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    for text in texts:
        tokens = found.tokenize(text.text.encode(), special=False)[: len(text.tokens)]
        if tokens != text.tokens:
            raise SystemExit(f"llama.cpp has other tokens for text {text.number}: {tokens} for {text.tokens}")
        found.reset()
        found.eval(text.tokens[:-1])
        yield torch.from_numpy(found.scores[: len(text.tokens) - 1].copy())
