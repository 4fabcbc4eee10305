"""``python -m engine train-draft``: an EAGLE-3 head for a model, from texts and the model's own answers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.drafts.head import HeadShape, TrainedHead
from engine.drafts.states import StateReader
from engine.drafts.texts import Sequenced, answers, read_rows, sequences
from engine.drafts.train import Example, HeadTrainer, Recipe, batches, vocabulary
from engine.errors import StartupError, UnsupportedModel
from engine.models.config import DecoderConfig
from engine.models.decoder import PREFIXES
from engine.models.registry import FAMILIES, Model, load_model, read_config, read_family
from engine.weights.safetensors import SafetensorsReader
from engine.weights.source import gguf_file, locate
from engine.worker.device import pick_dtype, pick_threads

_CPU = torch.device("cpu")
_HELD_OUT = 12
"""Texts that acceptance is measured on, at most; a tenth of few."""


@dataclass(frozen=True, slots=True)
class Settings:
    recipe: Recipe
    vocab: int
    """Draft tokens."""
    width: int | None
    """Of the head's MLP; ``None``: the model's."""
    length: int
    """Tokens of a text, at most."""
    seconds: float
    """Most that training may take."""
    every: int = 25
    """Steps between two saves."""


def run(options: dict[str, Any]) -> int:
    """Raises ``StartupError``."""
    settings = Settings(
        Recipe(options["steps"], peak=options["rate"], depth=options["depth"]),
        options["draft_vocab"],
        options["width"],
        options["length"],
        options["seconds"],
    )
    if min(settings.recipe.steps, settings.recipe.depth, settings.vocab) < 1 or settings.length < 8:
        raise StartupError("--steps, --depth and --draft-vocab must be at least 1, and --length at least 8.")
    folder, out = locate(options["model"]), Path(options["out"])
    torch.set_num_threads(options["threads"] or pick_threads(folder))
    out.mkdir(parents=True, exist_ok=True)
    rows = read_rows(options["texts"])
    answered = _answered(rows, folder, out / "answers.jsonl", options["answer"], settings)
    texts = sequences([row for row in rows if "prompt" not in row] + answered, folder, settings.length)
    train(folder, texts, out, settings, report=_report)
    return 0


def train(
    folder: Path, texts: Sequence[Sequenced], out: Path, settings: Settings, *, report: Any = None
) -> TrainedHead:
    """Writes the head to ``out`` now and then, and goes on from the one that is there. Raises ``StartupError``."""
    if len(texts) < 2:
        raise StartupError("There are fewer than two texts of some tokens to learn from.")
    raw = read_config(folder)
    config = read_family(next(iter(name for name in raw["architectures"] if name in FAMILIES)), raw)
    if any(config.mixers):
        raise StartupError(
            "Layers of this model keep a state of each request, from which draft tokens that are not accepted could "
            "not be taken back: a head would be of no use to it."
        )
    layers = (2, config.layers // 2, config.layers - 3) if config.layers > 4 else (0, 1, config.layers)
    dtype = pick_dtype("auto", folder, _CPU)
    longest = max(len(text.tokens) for text in texts)
    model = load_model(folder, _CPU, dtype, max_model_len=longest)
    ids = vocabulary(texts, settings.vocab, config.vocab_size)
    shape = HeadShape(
        config.hidden,
        settings.width or config.width,
        config.heads,
        config.kv_heads,
        config.head_dim,
        len(ids),
        config.eps,
        config.ropes[0].theta,
    )
    head = TrainedHead(shape)
    stored = shape.config(vocab=config.vocab_size, positions=config.max_positions, layers=layers)
    if (out / "model.safetensors").is_file():
        ids = _resume(head, out, stored)
    else:
        head.adopt(own_weights(folder, config, model, ids))
    _say(report, f"reading the hidden states of {sum(len(text.tokens) for text in texts)} tokens")
    states = StateReader(model, layers, dtype, longest).read(texts)
    embed = _table(model, texts)
    # It takes more memory than all that follows.
    del model
    examples = [Example(text, one) for text, one in zip(texts, states, strict=True)]
    Random(0).shuffle(examples)
    few = max(1, min(_HELD_OUT, len(examples) // 10))
    trainer = HeadTrainer(
        head, embed, ids, config.vocab_size, settings.recipe, autocast=dtype != torch.float32
    )
    began = time.monotonic()
    source = batches(examples[few:], settings.recipe.tokens, Random(1))
    for step in range(settings.recipe.steps):
        done = max(step / settings.recipe.steps, (time.monotonic() - began) / settings.seconds)
        learnt = trainer.learn(next(source), done)
        last = step + 1 == settings.recipe.steps or time.monotonic() - began > settings.seconds
        if (step + 1) % settings.every == 0 or last:
            seen = trainer.measure(examples[:few])
            save(head, ids, stored, out)
            shares = " ".join(f"{share:.2f}" for share in seen.right)
            _say(
                report,
                f"step {step + 1:5}  loss {learnt.loss:.3f}  held out {seen.loss:.3f}  right {shares}  "
                f"accepted {seen.accepted:.2f} of {settings.recipe.depth}  {time.monotonic() - began:.0f} s",
            )
        if last:
            break
    return head


def save(head: TrainedHead, ids: Sequence[int], config: dict[str, Any], out: Path) -> None:
    """In the layout of published EAGLE-3 heads, weights in float16."""
    chosen = torch.tensor(ids)
    marks = torch.zeros(config["vocab_size"], dtype=torch.bool)
    marks[chosen] = True
    weights = {name: weight.detach().half().contiguous() for name, weight in head.state_dict().items()}
    weights |= {"d2t": chosen - torch.arange(len(ids)), "t2d": marks}
    out.mkdir(parents=True, exist_ok=True)
    part = out / "model.safetensors.part"
    save_file(weights, part, metadata={"format": "pt"})
    part.replace(out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


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


def _answered(
    rows: Sequence[dict[str, Any]], folder: Path, kept: Path, tokens: int, settings: Settings
) -> list[dict[str, Any]]:
    """The prompts' answers; those that ``kept`` holds are not generated again."""
    prompts = [row for row in rows if "prompt" in row]
    done = read_rows(kept) if kept.is_file() else []
    if len(done) < len(prompts):
        longest = min(settings.length, _positions(folder))
        config = EngineConfig(
            model=folder,
            device="cpu",
            threads=torch.get_num_threads(),
            max_model_len=longest,
            max_num_seqs=32,
            kv_cache_blocks=32 * -(-longest // 16),
        )
        with kept.open("a", encoding="utf-8") as file:
            for part in answers(prompts[len(done) :], config, tokens=tokens):
                done += part
                file.writelines(json.dumps(row) + "\n" for row in part)
                file.flush()
                _report(f"{len(done)} of {len(prompts)} prompts are answered")
    return done


def _table(model: Model, texts: Sequence[Sequenced]) -> Callable[[Tensor], Tensor]:
    """The model's embedding, of the tokens that occur."""
    ids = torch.tensor(sorted({0, *(token for text in texts for token in text.tokens)}))
    rows = torch.cat([model.embed(part) for part in ids.split(1024)])
    return lambda tokens: rows[torch.searchsorted(ids, tokens)]


def _positions(folder: Path) -> int:
    return int(read_config(folder).get("max_position_embeddings") or 2048)


def _resume(head: TrainedHead, out: Path, config: dict[str, Any]) -> list[int]:
    """The draft vocabulary of the head in ``out``, whose weights ``head`` takes."""
    if read_config(out) != config:
        raise StartupError(f"{out} holds a head of other settings: give another --out, or remove it.")
    weights = load_file(out / "model.safetensors")
    ids = weights.pop("d2t") + torch.arange(head.shape.vocab)
    del weights["t2d"]
    head.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return [int(token) for token in ids]


def _say(report: Any, text: str) -> None:
    if report:
        report(text)


def _report(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
