"""The model families by ``architectures`` of config.json, and loading a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.errors import ModelUnavailable, UnsupportedModel
from engine.kv_cache import KVCache, KVShape, stored_dtype
from engine.layers.key_smoothing import StoredKeys
from engine.layers.lora import AdapterBank
from engine.models.altup import AltUpDecoder
from engine.models.bamba import bamba
from engine.models.builder import LayerBuilder
from engine.models.cohere import cohere, cohere2
from engine.models.config import DecoderConfig, Raw
from engine.models.decoder import Decoder
from engine.models.deepseek import deepseek_v2, deepseek_v3, glm4_moe_lite, minicpm3, youtu
from engine.models.gemma import gemma, gemma2, gemma3, gemma3_text, gemma3n, gemma3n_text
from engine.models.glm import glm, glm4
from engine.models.gpt_oss import gpt_oss
from engine.models.granite import granite, granite_hybrid
from engine.models.hidden_states import HiddenStates
from engine.models.lfm2 import lfm2, lfm2_moe
from engine.models.llama import llama, mistral, phi3, qwen2, qwen3
from engine.models.llama4 import llama4, llama4_text
from engine.models.llama_kin import (
    apertus,
    ernie,
    hunyuan,
    ministral,
    ministral3,
    mistral3,
    seed_oss,
    smollm3,
    starcoder2,
)
from engine.models.mixture import glm4_moe, mixtral, qwen2_moe, qwen3_moe
from engine.models.mixture_kin import ernie_moe, hunyuan_moe, olmoe, phimoe
from engine.models.olmo import exaone4, olmo2, olmo3
from engine.models.qwen_next import qwen3_5, qwen3_5_moe, qwen3_next
from engine.models.refused import MISSING
from engine.parallel.part import WHOLE_MODEL, Part
from engine.state_cache import StateShape
from engine.weights.formats import detect_format
from engine.weights.progress import progress
from engine.weights.safetensors import SafetensorsReader
from engine.weights.source import gguf_file
from engine.weights.stacked_experts import StackedExperts
from engine.weights.weight_cache import OFF, WeightCache, weight_cache
from engine.weights.weight_loader import WeightLoader
from kernels.native.linear import available
from kernels.store_kv import LARGEST


class Model(Protocol):
    vocab_size: int
    max_positions: int
    """The longest context that the model supports."""
    hidden_size: int
    shares_head: bool
    """Whether each rank of the first stage has the logits of some tokens, which rank 0 gathers."""
    kv_shape: KVShape
    """This rank's."""
    state_shape: StateShape | None
    """Of layers that keep a state in place of keys and values, if any."""

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first layer reads [tokens, hidden]."""
        ...

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionMetadata,
        cache: KVCache,
        states: HiddenStates | None = None,
    ) -> Tensor:
        """Hidden states [tokens, hidden] of ``tokens`` int64 [tokens] at ``positions`` int64 [tokens]. ``states``
        keeps those between layers."""
        ...

    def through(self, x: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache) -> Tensor:
        """This stage's layers [tokens, hidden] → what the next stage reads."""
        ...

    def normed(self, x: Tensor) -> Tensor:
        """The last stage's output [tokens, hidden] as hidden states, on the first stage."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] → [rows, vocab]."""
        ...


FAMILIES: Mapping[str, Callable[[Raw], DecoderConfig]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Phi3ForCausalLM": phi3,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3_text,
    "GemmaForCausalLM": gemma,
    "Gemma3nForCausalLM": gemma3n,
    "Gemma3nForConditionalGeneration": gemma3n_text,
    "SmolLM3ForCausalLM": smollm3,
    "Olmo2ForCausalLM": olmo2,
    "Olmo3ForCausalLM": olmo3,
    "Exaone4ForCausalLM": exaone4,
    "GraniteForCausalLM": granite,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "GlmForCausalLM": glm,
    "Glm4ForCausalLM": glm4,
    "MinistralForCausalLM": ministral,
    "Ministral3ForCausalLM": ministral3,
    "Mistral3ForConditionalGeneration": mistral3,
    "CohereForCausalLM": cohere,
    "Cohere2ForCausalLM": cohere2,
    "Starcoder2ForCausalLM": starcoder2,
    "SeedOssForCausalLM": seed_oss,
    "ApertusForCausalLM": apertus,
    "HunYuanDenseV1ForCausalLM": hunyuan,
    "Ernie4_5ForCausalLM": ernie,
    "Ernie4_5_ForCausalLM": ernie,
    "MixtralForCausalLM": mixtral,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "Glm4MoeForCausalLM": glm4_moe,
    "OlmoeForCausalLM": olmoe,
    "PhimoeForCausalLM": phimoe,
    "Ernie4_5_MoeForCausalLM": ernie_moe,
    "HunYuanMoEV1ForCausalLM": hunyuan_moe,
    "GptOssForCausalLM": gpt_oss,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "KimiK2ForCausalLM": deepseek_v3,
    "Glm4MoeLiteForCausalLM": glm4_moe_lite,
    "MiniCPM3ForCausalLM": minicpm3,
    "YoutuForCausalLM": youtu,
    "Llama4ForCausalLM": llama4,
    "Llama4ForConditionalGeneration": llama4_text,
    "BambaForCausalLM": bamba,
    "Lfm2ForCausalLM": lfm2,
    "Lfm2MoeForCausalLM": lfm2_moe,
    "Qwen3NextForCausalLM": qwen3_next,
    "Qwen3_5ForCausalLM": qwen3_5,
    "Qwen3_5ForConditionalGeneration": qwen3_5,
    "Qwen3_5MoeForCausalLM": qwen3_5_moe,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5_moe,
}


def read_config(folder: Path) -> dict[str, Any]:
    """Raises ``ModelUnavailable``."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ModelUnavailable(f"{path} is not a JSON object.")
    return config


def read_family(name: str, config: Raw) -> DecoderConfig:
    """Raises ``UnsupportedModel``."""
    try:
        return FAMILIES[name](config)
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UnsupportedModel(f"config.json holds a value that makes no sense: {error}.") from error


def open_reader(
    folder: Path, device: torch.device, dtype: torch.dtype, config: DecoderConfig
) -> SafetensorsReader:
    """Raises ``ModelUnavailable``."""
    if (experts := config.experts) and experts.stacked:
        return StackedExperts(folder, device, dtype, count=experts.count, stacking=experts.stacked)
    return SafetensorsReader(folder, device, dtype)


def load_model(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    part: Part = WHOLE_MODEL,
    adapters: AdapterBank | None = None,
    max_model_len: int | None = None,
    quantization: str | None = None,
    invariant: bool = False,
    weights_cache: str = OFF,
    kv_cache_dtype: str = "auto",
) -> Model:
    """``part``: what of it is loaded.
    ``max_model_len``: the longest context to be served; ``None``: the longest that the model supports.
    ``weights_cache``: where converted weights are kept: ``auto``, ``off`` or a folder.
    ``kv_cache_dtype``: of the cache that it is going to be given.

    Raises ``StartupError`` for an unknown one, ``ModelUnavailable`` or ``UnsupportedModel``.
    """
    config = read_config(folder)
    names = config.get("architectures") or []
    names = [str(name) for name in names] if isinstance(names, list) else [str(names)]
    known = next((name for name in names if name in FAMILIES), None)
    if known is None:
        if lacking := next((name for name in names if name in MISSING), None):
            raise UnsupportedModel(
                f"The architecture {lacking} is not supported: it needs {MISSING[lacking]}."
            )
        asked = ", ".join(names) or "(config.json names none)"
        raise UnsupportedModel(
            f"The architecture {asked} is not supported; these are: {', '.join(FAMILIES)}."
        )
    described, stored_format = read_family(known, config), detect_format(config)
    if part.experts and described.experts is None:
        raise UnsupportedModel("The model has no experts to divide: leave out --expert-parallel.")
    reader: Any
    if file := gguf_file(folder):
        if part.stage.count > 1 or part.experts:
            raise UnsupportedModel(
                "GGUF files are not divided over stages or by experts: use --tensor-parallel alone, or a checkpoint in "
                "safetensors files."
            )
        # Imported lazily: only GGUF needs it.
        from engine.weights.gguf_checkpoint import GgufCheckpoint, GgufGroups

        reader = GgufCheckpoint(file, device, dtype)
        if quantization is None and reader.quantized:
            # 4-bit codes are kept as they are; other quantized tensors are kept in int8.
            quantization, stored_format = "int8", GgufGroups()
    else:
        reader = open_reader(folder, device, dtype, described)
    weights = WeightLoader(
        reader,
        device,
        dtype,
        tp=part.tp,
        quantization=quantization,
        quantized_format=stored_format,
    )
    cache: WeightCache | None = None
    if device.type == "cpu" and available() and (quantization or stored_format):
        # Weights that stay plain are as quickly packed as read.
        kept = stored_format.name if stored_format else None
        options = (json.dumps(config, sort_keys=True), dtype, quantization, kept, *_marks(part))
        cache = weight_cache(weights_cache, folder, reader.paths, options, size=reader.total_bytes)
    keys, scales = None, stored_dtype(kv_cache_dtype) in LARGEST
    if scales or dtype.itemsize == 2:
        keys = StoredKeys(min(max_model_len or described.max_positions, described.max_positions), scales)
    build = LayerBuilder(
        weights,
        adapters=adapters,
        invariant=invariant,
        cache=cache,
        part=part,
        keys=keys,
    )
    with cache or nullcontext(), progress(reader.total_bytes) as reader.on_read:
        altup = described.altup
        model = (
            AltUpDecoder(described, altup, build, max_model_len)
            if altup
            else Decoder(described, build, max_model_len)
        )
        if cache is None or not cache.complete:
            weights.finish()
    reader.release()
    return model


def _marks(part: Part) -> tuple[object, ...]:
    """What tells its converted weights from those of other parts."""
    return (
        *(part.tp.rank, part.tp.size, part.stage.index, part.stage.count),
        *(part.experts, part.vocabulary and part.tp.size > 1),
    )
