"""A model block by block: one block's weights in memory at a time, and the calibration texts' hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.core.plan import Plan, ScheduledRequest
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache
from engine.layers.embedding import Embedding
from engine.layers.product import Product
from engine.layers.rope import NoRotation
from engine.models import parts
from engine.models.builder import LayerBuilder
from engine.models.config import DecoderConfig
from engine.models.decoder import PREFIXES, Block, Decoder, ParallelBlock
from engine.quantizer.inputs import ObservedLayer
from engine.weights.weight_loader import Checkpoint, Split, WeightLoader
from engine.worker.batch import BatchBuilder

_CPU = torch.device("cpu")
_BLOCK_SIZE = 16

Tensors = dict[str, Tensor]


class Recorder:
    """A checkpoint that keeps the tensors that were taken from it: what a block needs, under its own names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.taken: Tensors = {}

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.taken[name] = tensor = self._checkpoint.take(name, shape)
        return tensor

    def ignore(self, name: str) -> None:
        self._checkpoint.ignore(name)

    def finish(self) -> None:
        self._checkpoint.finish()


class Held:
    """A checkpoint of tensors in memory."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._tensors[name]

    def ignore(self, name: str) -> None:
        """Nothing is missed."""

    def finish(self) -> None:
        """Nothing is missed."""


class _Builder(LayerBuilder):
    """Plain layers, in float32, each with its inputs observed; ``tokens`` 0: not observed."""

    def __init__(self, checkpoint: Checkpoint, tokens: int, hessian: bool) -> None:
        super().__init__(WeightLoader(checkpoint, _CPU, torch.float32))
        self.layers: list[ObservedLayer] = []
        self._tokens, self._hessian = tokens, hessian

    def linear(
        self,
        parts: Mapping[str, int],
        in_features: int,
        *,
        bias: bool = False,
        split: Split | None = None,
        rows: Mapping[str, Tensor] | None = None,
        copies: Mapping[str, int] | None = None,
        unbiased: str | None = None,
    ) -> Product:
        product = super().linear(
            parts, in_features, bias=bias, split=split, rows=rows, copies=copies, unbiased=unbiased
        )
        if split is None or not self._tokens:
            return product
        self.layers.append(ObservedLayer(product, parts, in_features, self._tokens, self._hessian))
        return self.layers[-1]


class _Trunk(LayerBuilder):
    """What is outside the blocks; of the head the weights alone are wanted."""

    def linear(
        self,
        parts: Mapping[str, int],
        in_features: int,
        *,
        bias: bool = False,
        split: Split | None = None,
        rows: Mapping[str, Tensor] | None = None,
        copies: Mapping[str, int] | None = None,
        unbiased: str | None = None,
    ) -> Product:
        for name, out in parts.items():
            self.weights.take(f"{name}.weight", (out, in_features))
        return lambda x: x

    def tied(self, name: str, embedding: Embedding, bias: Tensor | None = None) -> Product:
        return lambda x: x


@dataclass(slots=True)
class _Text:
    """A calibration text on its way through the model."""

    batch: AttentionMetadata
    rotations: list[tuple[Tensor, ...]]
    x: Tensor
    residual: Tensor | None = None


class BlockPass:
    """Takes ``texts``, token ids, through the blocks of a model one after the other."""

    def __init__(self, config: DecoderConfig, checkpoint: Checkpoint, texts: Sequence[Sequence[int]]) -> None:
        if config.experts and config.experts.layers and texts:
            raise UnsupportedModel("Mixtures of experts are not calibrated yet: take --method rtn.")
        if any(config.mixers):
            raise UnsupportedModel(
                "Models with layers that keep a state in place of keys and values are not quantized into a checkpoint "
                "yet: serve them with --quantization."
            )
        self._config = config
        self._checkpoint = checkpoint
        recorder = Recorder(checkpoint)
        trunk = Decoder(
            replace(config, windows=(), layer_ropes=(), predictors=0),
            _Trunk(WeightLoader(recorder, _CPU, torch.float32)),
            max([1, *map(len, texts)]),
        )
        self.trunk: Tensors = recorder.taken
        """The tensors outside the blocks."""
        self._prefix = next(
            (name for name in PREFIXES if f"{name}embed_tokens.weight" in checkpoint), PREFIXES[0]
        )
        longest = max([1, *map(len, texts)])
        shape = replace(trunk.kv_shape, layers=1, windows=())
        self._cache = KVCache(shape, -(-longest // _BLOCK_SIZE), _BLOCK_SIZE, _CPU, torch.float32)
        self._texts = [self._embed(trunk, tokens) for tokens in texts]
        self._tokens = sum(map(len, texts))

    def _embed(self, trunk: Decoder, tokens: Sequence[int]) -> _Text:
        blocks = list(range(-(-len(tokens) // _BLOCK_SIZE)))
        scheduled = ScheduledRequest(0, list(tokens), 0, blocks, None, False)
        batch = BatchBuilder(self._cache, _CPU).build(Plan([scheduled]))
        none = NoRotation(self._config.ropes[0].dim, _CPU, torch.float32)
        rotations = [*trunk.rotations(batch.positions), none(batch.positions)]
        return _Text(batch.attention, rotations, trunk.embed(batch.tokens))

    def blocks(self, hessian: bool) -> Iterator[OpenBlock]:
        """Each block in order; it must be closed by ``OpenBlock.advance`` before the next one is taken.
        ``hessian``: whether inputs' products are wanted, or a sample of them and their sizes."""
        for layer in range(self._config.layers):
            recorder = Recorder(self._checkpoint)
            self._checkpoint.ignore(f"{self._prefix}layers.{layer}.self_attn.rotary_emb.inv_freq")
            build = _Builder(recorder, max(1, self._tokens), hessian)
            block = self._block(build, layer)
            for text in self._texts:
                self._run(block, layer, text)
            yield OpenBlock(
                layer, f"{self._prefix}layers.{layer}", recorder.taken, build.layers, self._advance
            )
        for i in range(self._config.predictors):
            self._checkpoint.ignore(f"{self._prefix}layers.{self._config.layers + i}.")
        self._checkpoint.finish()

    def _advance(self, layer: int, tensors: Tensors) -> None:
        if self._texts:
            block = self._block(_Builder(Held(tensors), 0, False), layer)
            for text in self._texts:
                text.x, text.residual = self._run(block, layer, text)

    def deviation(self, layer: int, one: Tensors, other: Tensors) -> float:
        """How much the block's outputs on the first text differ, relative to their size."""
        ends = []
        for tensors in (one, other):
            x, residual = self._run(
                self._block(_Builder(Held(tensors), 0, False), layer), layer, self._texts[0]
            )
            ends.append(x + residual)
        return float((ends[0] - ends[1]).norm() / ends[0].norm().clamp_min(1e-30))

    def outputs(self, layer: int, observed: ObservedLayer, tensors: Tensors) -> Tensor:
        """What the part of the block that reads these inputs, attention or the MLP, makes of a sample of them."""
        config, name, names = self._config, f"{self._prefix}layers.{layer}", list(observed.parts)
        build, end = _Builder(Held(tensors), 0, False), names[0].rpartition(".")[2]
        if end in config.qkv:
            attention = parts.attention(config, build, f"{name}.self_attn", layer)
            own = zip(observed.texts, self._texts, strict=False)
            return torch.cat(
                [
                    attention(x, self._rotation(layer, text), text.batch, self._cache.layers[0])
                    for x, text in own
                ]
            )
        if end in config.gate_up:
            return parts.mlp(config, build, f"{name}.{config.mlp}")(observed.sample)
        return observed.sample @ torch.cat([tensors[f"{part}.weight"] for part in names]).t()

    def _block(self, build: LayerBuilder, layer: int) -> Block:
        kind = ParallelBlock if self._config.parallel else Block
        return kind(self._config, build, f"{self._prefix}layers.{layer}", layer)

    def _run(self, block: Block, layer: int, text: _Text) -> tuple[Tensor, Tensor]:
        # Kernels may add the residual in place.
        residual = None if text.residual is None else text.residual.clone()
        return block(text.x.clone(), residual, self._rotation(layer, text), text.batch, self._cache.layers[0])

    def _rotation(self, layer: int, text: _Text) -> tuple[Tensor, ...]:
        rope = self._config.layer_ropes[layer]
        # The last one turns nothing.
        return text.rotations[-1 if rope is None else rope]


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """A block that the texts have gone through once, with its weights as they were."""

    layer: int
    name: str
    tensors: Tensors
    layers: list[ObservedLayer]
    _advance: Callable[[int, Tensors], None]

    def advance(self, tensors: Tensors) -> None:
        """The texts go through it with ``tensors``, and on to the next block."""
        self._advance(self.layer, tensors)
