"""``python -m engine train-draft``: an EAGLE-3 head or Medusa heads, from texts and the model's own answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import EngineConfig
from engine.drafts.course import (
    Reporter,
    Settings,
    apart,
    family_of,
    line,
    logits_by,
    own_weights,
    say,
    steps,
)
from engine.drafts.head import HeadShape, TrainedHead
from engine.drafts.medusa import train_heads
from engine.drafts.states import StateReader
from engine.drafts.texts import Sequenced, answers, read_rows, sequences
from engine.drafts.train import Example, HeadTrainer, Recipe, batches, vocabulary
from engine.errors import StartupError
from engine.models.registry import Model, load_model, read_config
from engine.weights.source import locate
from engine.worker.device import pick_dtype, pick_threads

_CPU = torch.device("cpu")


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
    if len(texts) < 2:
        raise StartupError("There are fewer than two texts of some tokens to learn from.")
    learn = train_heads if options["kind"] == "medusa" else train
    learn(folder, texts, out, settings, report=_report)
    return 0


def train(
    folder: Path, texts: Sequence[Sequenced], out: Path, settings: Settings, *, report: Reporter = None
) -> TrainedHead:
    """Writes the head to ``out`` now and then, and goes on from the one that is there. Raises ``StartupError``."""
    config = family_of(folder)
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
        own = own_weights(folder, config, model, ids)
    else:
        own = own_weights(folder, config, model, ids)
        head.adopt(own)
    say(report, f"reading the hidden states of {sum(len(text.tokens) for text in texts)} tokens")
    states = StateReader(model, layers, dtype, longest).read(texts)
    embed = _table(model, texts)
    # It takes more memory than all that follows.
    del model
    examples = [Example(text, one) for text, one in zip(texts, states, strict=True)]
    held_out, learnt = apart(examples)
    trainer = HeadTrainer(
        head,
        embed,
        logits_by(config, own["lm_head.weight"].to(dtype)),
        ids,
        config.vocab_size,
        settings.recipe,
        autocast=dtype != torch.float32,
    )
    del own
    source = batches(learnt, settings.recipe.tokens, Random(1))
    for step, done, last in steps(settings):
        found = trainer.learn(next(source), done)
        if (step + 1) % settings.every == 0 or last:
            save(head, ids, stored, out)
            say(report, line(step, found, trainer.measure(held_out)))
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


def _report(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
