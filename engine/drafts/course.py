"""What the training of every kind of head has in common: its settings, its steps, and what it begins with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.drafts.train import Example, Measured, Recipe
from engine.errors import StartupError, UnsupportedModel
from engine.models.config import DecoderConfig
from engine.models.decoder import PREFIXES
from engine.models.registry import FAMILIES, Model, read_config, read_family
from engine.weights.safetensors import SafetensorsReader
from engine.weights.source import gguf_file

_CPU = torch.device("cpu")
_HELD_OUT = 12
"""Texts that acceptance is measured on, at most; a tenth of few."""

Reporter = Callable[[str], None] | None


@dataclass(frozen=True, slots=True)
class Settings:
    recipe: Recipe
    vocab: int
    """Draft tokens."""
    width: int | None
    """Of an EAGLE head's MLP; ``None``: the model's."""
    length: int
    """Tokens of a text, at most."""
    seconds: float
    """Most that training may take."""
    every: int = 25
    """Steps between two saves."""


def family_of(folder: Path) -> DecoderConfig:
    """Raises ``StartupError``."""
    raw = read_config(folder)
    config = read_family(next(iter(name for name in raw["architectures"] if name in FAMILIES)), raw)
    if any(config.mixers):
        raise StartupError(
            "Layers of this model keep a state of each request, from which draft tokens that are not accepted could "
            "not be taken back: a head would be of no use to it."
        )
    return config


def apart(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Those that are held out, and those that are learnt.

    By digests of their tokens: when a training goes on with more texts than before, none is held out that was learnt
    (once as many are held out as ever are).
    """
    mixed = sorted(examples, key=lambda one: sha256(repr(one.text.tokens).encode()).digest())
    few = max(1, min(_HELD_OUT, len(mixed) // 10))
    return mixed[:few], mixed[few:]


def steps(settings: Settings) -> Iterator[tuple[int, float, bool]]:
    """Each step's number, what lies behind of the steps or of the time, and whether it is the last."""
    most, began = settings.recipe.steps, time.monotonic()
    for step in range(most):
        spent = (time.monotonic() - began) / settings.seconds
        last = step + 1 == most or spent > 1
        yield step, max(step / most, spent), last
        if last:
            return


def line(step: int, learnt: Measured, seen: Measured) -> str:
    """``seen``: on what is held out."""
    shares = " ".join(f"{share:.2f}" for share in seen.right)
    return (
        f"step {step + 1:5}  loss {learnt.loss:.3f}  held out {seen.loss:.3f}  right {shares}  "
        f"accepted {seen.accepted:.2f} of {len(seen.right)}"
    )


def say(report: Reporter, text: str) -> None:
    if report:
        report(text)


def own_weights(folder: Path, config: DecoderConfig, model: Model, ids: Sequence[int]) -> dict[str, Tensor]:
    """Of the model, what a head can begin with: its last layer, its last norm, and its LM head's rows of ``ids``."""
    if file := gguf_file(folder):
        # Imported lazily: only GGUF needs it.
        from engine.weights.gguf_checkpoint import GgufCheckpoint

        reader: Any = GgufCheckpoint(file, _CPU, torch.float32)
    else:
        reader = SafetensorsReader(folder, _CPU, torch.float32)
    prefix = next((name for name in PREFIXES if f"{name}embed_tokens.weight" in reader), PREFIXES[0])
    inner, outer = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "self_attn.q_proj": (inner, config.hidden),
        "self_attn.k_proj": (outer, config.hidden),
        "self_attn.v_proj": (outer, config.hidden),
        "self_attn.o_proj": (config.hidden, inner),
        "mlp.gate_proj": (config.width, config.hidden),
        "mlp.up_proj": (config.width, config.hidden),
        "mlp.down_proj": (config.hidden, config.width),
        "post_attention_layernorm": (config.hidden,),
    }
    names = {
        f"{prefix}layers.{config.layers - 1}.{name}.weight": (f"midlayer.{name}.weight", shape)
        for name, shape in shapes.items()
    }
    names[f"{prefix}norm.weight"] = ("norm.weight", (config.hidden,))
    found: dict[str, Tensor] = {}
    for name, (own, size) in names.items():
        if name in reader:
            try:
                found[own] = reader.take(name, size).float()
            except UnsupportedModel:
                continue
    if config.tied:
        rows = [model.embed(part) for part in torch.tensor(ids).split(1024)]
        found["lm_head.weight"] = torch.cat(rows).float()
    elif "lm_head.weight" in reader:
        found["lm_head.weight"] = reader.take("lm_head.weight", (config.vocab_size, config.hidden))[
            ids
        ].float()
    return found


def logits_by(config: DecoderConfig, lm_head: Tensor) -> Callable[[Tensor], Tensor]:
    """The model's logits of the tokens that ``lm_head`` has rows of."""

    def logits(x: Tensor) -> Tensor:
        found = functional.linear(x.to(lm_head.dtype), lm_head) * config.logit_scale
        cap = config.logit_softcap
        return found if cap is None else cap * (found / cap).tanh()

    return logits
