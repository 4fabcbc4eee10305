"""all-MiniLM-L6-v2 (BERT, 6 layers of 384) as the packaged weights have it, written out for one CPU core.

Texts are laid end to end instead of padded: linear layers see all tokens as rows, attention each text by itself. Where
the CPU multiplies int8 fast, linear layers are int8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from gateway.sidecar.models.windows import Span

LAYERS, WIDTH, HEADS, MAX_TOKENS = 6, 384, 12, 256
POOLS = (*(f"mean{layer}" for layer in range(LAYERS + 1)), f"max{LAYERS}")

Linear = Callable[[Tensor], Tensor]


def exact(weight: Tensor, bias: Tensor) -> Linear:
    return lambda x: F.linear(x, weight, bias)


def int8(weight: Tensor, bias: Tensor) -> Linear:
    """Weights have a scale for each output channel; activations a scale and a middle for each token, so that what a
    text gives does not depend on its company in a batch."""
    by_channel = weight.abs().amax(1) / 127
    rounded = (weight / by_channel[:, None]).round()
    packed = rounded.to(torch.int8).t().contiguous()
    of_middle = (rounded.sum(1) * by_channel)[None]

    def apply(x: Tensor) -> Tensor:
        # Not aminmax, which takes fifteen times as long.
        low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        middle, by_token = (low + high) / 2, ((high - low) / 254).clamp_(min=1e-12)
        product = torch._int_mm(x.sub(middle).div_(by_token).round_().to(torch.int8), packed)
        return product.float().mul_(by_token).mul_(by_channel).add_(bias).addcmul_(middle, of_middle)

    return apply


class MiniLM:
    """Weights of a folder with ``model.safetensors`` and ``tokenizer.json``. Raises OSError or RuntimeError."""

    def __init__(self, folder: Path, *, linear: Callable[[Tensor, Tensor], Linear] | None = None) -> None:
        """``linear`` None: the faster of ``exact`` and ``int8`` on this machine."""
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        weights = {
            name.removeprefix("bert."): value
            for name, value in load_file(folder / "model.safetensors").items()
        }
        make = linear or fastest(weights["encoder.layer.0.intermediate.dense.weight"])
        self.quantized = make is int8

        def dense(*names: str) -> Linear:
            parts = [(weights[f"{name}.weight"].float(), weights[f"{name}.bias"].float()) for name in names]
            return make(torch.cat([weight for weight, _ in parts]), torch.cat([bias for _, bias in parts]))

        def norm(name: str) -> Linear:
            weight, bias = (
                weights[f"{name}.LayerNorm.weight"].float(),
                weights[f"{name}.LayerNorm.bias"].float(),
            )
            return lambda x: F.layer_norm(x, (WIDTH,), weight, bias, 1e-12)

        self._words = weights["embeddings.word_embeddings.weight"].float()
        kinds = weights["embeddings.token_type_embeddings.weight"][0]
        self._positions = (weights["embeddings.position_embeddings.weight"] + kinds).float()
        self._norm = norm("embeddings")
        self._layers = [
            (
                dense(*(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
                dense(f"{at}.attention.output.dense"),
                norm(f"{at}.attention.output"),
                dense(f"{at}.intermediate.dense"),
                dense(f"{at}.output.dense"),
                norm(f"{at}.output"),
            )
            for at in (f"encoder.layer.{number}" for number in range(LAYERS))
        ]

    def encode(self, texts: Sequence[str]) -> Tensor:
        """``[texts, POOLS, WIDTH]``; of a longer text the first ``MAX_TOKENS`` tokens."""
        rows = [_truncated(one.ids) for one in self.tokenizer.encode_batch_fast(list(texts))]
        lengths = [len(row) for row in rows]
        with torch.inference_mode():
            pooled = []
            for x in self._states(rows, lengths):
                pooled.append(_means(x, lengths))
            pooled.append(torch.stack([part.amax(0) for part in x.split_with_sizes(lengths)]))
            return torch.stack(pooled, 1)

    def words(self, texts: Sequence[str], layers: Sequence[int]) -> list[tuple[list[Span], Tensor]]:
        """For each text the spans of its words, and ``[words, layers × WIDTH]``: the hidden states after ``layers`` (0:
        before the first), averaged over a word's tokens. Of a longer text the first ``MAX_TOKENS`` tokens."""
        found = self.tokenizer.encode_batch(list(texts))
        rows = [_truncated(one.ids) for one in found]
        lengths = [len(row) for row in rows]
        with torch.inference_mode():
            states = islice(self._states(rows, lengths), max(layers) + 1)
            wanted = [x for layer, x in enumerate(states) if layer in layers]
            parts = torch.cat(wanted, 1).split_with_sizes(lengths)
            return [
                _by_word(one.word_ids[:length], one.offsets, part)
                for one, length, part in zip(found, lengths, parts, strict=True)
            ]

    def _states(self, rows: Sequence[list[int]], lengths: Sequence[int]) -> Iterator[Tensor]:
        """``[tokens, WIDTH]`` before the first layer and after each."""
        ids = torch.tensor([token for row in rows for token in row])
        places = torch.cat([self._positions[:length] for length in lengths])
        x = self._norm(self._words[ids] + places)
        yield x
        for qkv, out, attention_norm, up, down, output_norm in self._layers:
            x = attention_norm(x + out(_attention(qkv(x), lengths)))
            x = output_norm(x + down(F.gelu(up(x))))
            yield x


def _by_word(numbers: Sequence[int | None], offsets: Sequence[Span], x: Tensor) -> tuple[list[Span], Tensor]:
    spans: list[Span] = []
    last: int | None = None
    places = []
    for number, (start, end) in zip(numbers, offsets, strict=False):
        if number is None:  # [CLS] and [SEP] go to a row of their own
            places.append(0)
        elif number == last:
            spans[-1] = (spans[-1][0], end)
            places.append(len(spans))
        else:
            spans.append((start, end))
            places.append(len(spans))
        last = number
    index = torch.tensor(places)
    sums = torch.zeros(len(spans) + 1, x.shape[1]).index_add_(0, index, x)
    counts = torch.bincount(index, minlength=len(spans) + 1).clamp_(min=1)
    return spans, (sums / counts[:, None])[1:]


def _attention(qkv: Tensor, lengths: Sequence[int]) -> Tensor:
    parts = []
    for part in qkv.split_with_sizes(lengths):
        q, k, v = part.view(-1, 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        parts.append(F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(-1, WIDTH))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _means(x: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.stack([part.mean(0) for part in x.split_with_sizes(lengths)])


def _truncated(ids: list[int]) -> list[int]:
    return ids if len(ids) <= MAX_TOKENS else [*ids[: MAX_TOKENS - 1], ids[-1]]


def fastest(weight: Tensor) -> Callable[[Tensor, Tensor], Linear]:
    """``int8`` where it is clearly faster on this machine, which it is not without VNNI or its like."""
    weight, bias = weight.float(), torch.zeros(len(weight))
    x = torch.randn(128, weight.shape[1], generator=torch.Generator().manual_seed(0))
    try:
        quick = int8(weight, bias)
        return int8 if _seconds(quick, x) < 0.8 * _seconds(exact(weight, bias), x) else exact
    except RuntimeError:
        return exact


def _seconds(linear: Linear, x: Tensor) -> float:
    def once() -> float:
        started = time.perf_counter()
        linear(x)
        return time.perf_counter() - started

    with torch.inference_mode():
        return min(once() for _ in range(8))
