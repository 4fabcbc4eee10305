"""What quantized weights and KV caches cost in quality: ``python -m engine eval``.

Each variant is compared with full precision (float32) on the same tokens: perplexity, and how often both find the same
token most likely. The demo model is examined on held-out conversations, others on a text of yours.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.core.plan import Plan, ScheduledRequest
from engine.errors import ModelUnavailable, StartupError
from engine.kv_cache import KVCache
from engine.layers.linear import Linear
from engine.layers.native import Int6Linear
from engine.layers.quantized import Fp8Linear, Int4Linear, Int8Linear
from engine.models.registry import Model, load_model
from engine.weights.pack import write
from engine.weights.quantize import METHODS
from engine.weights.source import DEMO, locate
from engine.worker.batch import BatchBuilder
from engine.worker.device import pick_threads

_BLOCK = 16
_WINDOW = 512
"""Tokens of a text that are computed together, each seeing those before it."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is kept."""

    name: str
    dtype: torch.dtype = torch.float32
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    layout: str | None = None
    """``awq`` or ``gptq``: its weights are first written to files of that kind."""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    weights_mib: float
    perplexity: float
    agreement: float
    """Share of positions whose most likely token is the same as in full precision."""


Sample = tuple[list[int], int]
"""Tokens, and the first of them that counts."""

FULL = Way("float32")
WAYS = (
    FULL,
    Way("bfloat16", torch.bfloat16),
    *(Way(name, quantization=name) for name in METHODS if name != "fp8"),
    Way("awq files, groups of 64", layout="awq"),
    Way("gptq files, groups of 64", layout="gptq"),
    Way("KV cache int8", kv_cache_dtype="int8"),
    Way("KV cache fp8", kv_cache_dtype="fp8"),
    Way("int4 and KV cache int8", quantization="int4", kv_cache_dtype="int8"),
)


@torch.inference_mode()
def predict(model: Model, samples: Sequence[Sample], way: Way) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each sample the logits [counted, vocab] in float32, and the tokens that came [counted]."""
    longest = max(len(tokens) for tokens, _ in samples)
    blocks = -(-longest // _BLOCK)
    cpu = torch.device("cpu")
    cache = KVCache(model.kv_shape, blocks, _BLOCK, cpu, way.dtype, way.kv_cache_dtype)
    builder = BatchBuilder(cache, cpu)
    for tokens, first in samples:
        scheduled = ScheduledRequest(0, tokens[:-1], 0, list(range(blocks)), None, False)
        batch = builder.build(Plan([scheduled]))
        hidden = model.forward(batch.tokens, batch.positions, batch.attention, cache)
        yield model.logits(hidden[first - 1 :]).float(), torch.tensor(tokens[first:])


def evaluate(
    folder: Path, samples: Sequence[Sample], ways: Sequence[Way], report: Callable[[Result], None]
) -> list[Result]:
    """One result for each of ``ways``, of which ``FULL`` is computed first, asked for or not."""
    reference: list[Tensor] = []
    results = []
    for way in (FULL, *(way for way in ways if way != FULL)):
        with _as_stored(folder, way) as stored:
            model = load_model(stored, torch.device("cpu"), way.dtype, quantization=way.quantization)
        loss, same, count = 0.0, 0, 0
        for i, (logits, wanted) in enumerate(predict(model, samples, way)):
            best = logits.argmax(-1)
            if way == FULL:
                reference.append(best)
            loss += functional.cross_entropy(logits, wanted, reduction="sum").item()
            same += int((best == reference[i]).sum())
            count += len(wanted)
        result = Result(way.name, weight_bytes(model) / 2**20, math.exp(loss / count), same / count)
        if way in ways:
            results.append(result)
            report(result)
    return results


@contextmanager
def _as_stored(folder: Path, way: Way) -> Iterator[Path]:
    if way.layout is None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as target:
        write(folder, Path(target), way.layout, 64)
        yield Path(target)


def weight_bytes(model: object) -> int:
    """Memory of a model's weights and tables."""
    seen: set[int] = set()
    total = 0
    stack: list[Any] = [model]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (Linear, Int8Linear, Int6Linear, Int4Linear, Fp8Linear)):
            # Packed weights have no storage that could be asked.
            total += item.nbytes
        elif isinstance(item, Tensor):
            total += item.untyped_storage().nbytes()
        elif isinstance(item, (list, tuple)):
            stack += item
        elif isinstance(item, dict):
            stack += item.values()
        elif type(item).__module__.startswith("engine."):
            stack += getattr(item, "__dict__", {}).values()
    return total


def exam(folder: Path, count: int) -> list[Sample]:
    """Held-out conversations of the demo model. All their tokens count: answers alone it is too sure of to differ."""
    from tokenizers import Tokenizer

    from engine.demo import corpus, tokens

    encoder = tokens.Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    return [(encoder.encode(conversation)[0], 1) for conversation in corpus.exam(0, count)]


def read_text(folder: Path, path: Path) -> list[Sample]:
    """A text in windows, in each of which all tokens but the first count."""
    from tokenizers import Tokenizer

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelUnavailable(f"--text {path} cannot be read: {error}.") from error
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    windows = [(tokens[i : i + _WINDOW], 1) for i in range(0, len(tokens), _WINDOW)]
    samples = [window for window in windows if len(window[0]) > 1]
    if not samples:
        raise ModelUnavailable(f"--text {path} has fewer than two tokens.")
    return samples


def run(options: dict[str, Any]) -> int:
    """Raises ``StartupError`` if the model or the text cannot be read."""
    folder = locate(options["model"])
    torch.set_num_threads(pick_threads(folder))
    if options["text"] is not None:
        samples = read_text(folder, options["text"])
    elif options["model"] == DEMO:
        if options["count"] < 1:
            raise StartupError(f"--count must be at least 1, not {options['count']}.")
        samples = exam(folder, options["count"])
    else:
        raise ModelUnavailable("Give --text FILE: only the demo model has held-out texts of its own.")
    ways: Sequence[Way] = WAYS
    quantization, kv_cache_dtype = options["quantization"], options["kv_cache_dtype"]
    if quantization or kv_cache_dtype:
        asked = [quantization, f"KV cache {kv_cache_dtype}" if kv_cache_dtype else None]
        name = " and ".join(filter(None, asked))
        ways = (FULL, Way(name, quantization=quantization, kv_cache_dtype=kv_cache_dtype or "auto"))
    elif "quantization_config" in json.loads((folder / "config.json").read_text()):
        # Weights that are quantized already can only be widened.
        ways = tuple(way for way in WAYS if way.quantization is None and way.layout is None)
    if options["json"]:
        results = evaluate(folder, samples, ways, lambda result: None)
        _print(json.dumps([asdict(result) for result in results], indent=2))
        return 0
    tokens = sum(len(tokens) - first for tokens, first in samples)
    _print(f"{options['model']}: {tokens} tokens of {len(samples)} texts\n")
    _print("| weights and cache | weights, MiB | perplexity | same token as float32 |\n|---|--:|--:|--:|")
    evaluate(folder, samples, ways, lambda result: _print(_row(result)))
    return 0


def _row(result: Result) -> str:
    return f"| {result.name} | {result.weights_mib:.1f} | {result.perplexity:.4f} | {result.agreement:.2%} |"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
