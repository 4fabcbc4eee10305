"""Medusa heads that can be trained (https://arxiv.org/abs/2401.10774): plain torch, in the layout of published ones.

As in the paper's first way the model stays as it is, and the heads begin with its own LM head. That stays, too: only
what each head adds to the hidden state is learnt, so that training takes no memory of vocabulary by hidden size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from engine.drafts.course import Reporter, Settings, apart, family_of, line, own_weights, say, steps
from engine.drafts.states import StateReader
from engine.drafts.texts import Sequenced
from engine.drafts.train import Example, Measured, Recipe, batches, labels_of, rate_of, vocabulary
from engine.models.registry import load_model
from engine.worker.device import pick_dtype

_CPU = torch.device("cpu")
_DECAY = 0.8
"""Weight of each further head in the loss, as the paper's."""
_RANKS = 8


class TrainedMedusa(nn.Module):
    def __init__(self, hidden: int, heads: int, lm_head: Tensor) -> None:
        """``lm_head`` float32 [draft vocabulary, hidden]: the model's rows of the draft vocabulary."""
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(heads))
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)
        self.register_buffer("lm_head", lm_head, persistent=False)

    def forward(self, states: Tensor) -> list[Tensor]:
        """``states`` [rows, hidden], what the LM head reads → by head, logits [rows, draft vocabulary]."""
        return [(states + functional.silu(block(states))) @ self.lm_head.t() for block in self.blocks]


class MedusaTrainer:
    """Each place of a text teaches head ``i`` the token ``i + 2`` places on."""

    def __init__(
        self, heads: TrainedMedusa, ids: Sequence[int], vocab: int, recipe: Recipe, *, autocast: bool = True
    ) -> None:
        self.heads = heads
        self._recipe = recipe
        self._autocast = autocast
        self._label = labels_of(ids, vocab)
        self._optimizer = torch.optim.AdamW(
            heads.parameters(), lr=recipe.peak, weight_decay=recipe.weight_decay
        )
        self.step = 0

    def learn(self, examples: Sequence[Example], done: float) -> Measured:
        """One step. ``done``: the part of the training that lies behind."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate_of(self._recipe, self.step, done)
        loss, measured = self._loss(examples)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.heads.parameters(), 1.0)
        self._optimizer.step()
        self.step += 1
        return measured

    @torch.no_grad()
    def measure(self, examples: Sequence[Example]) -> Measured:
        return self._loss(examples)[1]

    @torch.no_grad()
    def ranks(self, examples: Sequence[Example]) -> list[list[float]]:
        """Of each head, how often its token of each rank is right."""
        found = []
        for logits, labels in self._pairs(examples):
            best = logits.topk(min(_RANKS, logits.shape[1]), -1).indices
            found.append((best == labels[:, None]).float().mean(0).tolist())
        return found

    def _pairs(self, examples: Sequence[Example]) -> list[tuple[Tensor, Tensor]]:
        """By head, logits and labels; those of other tokens than drafts are negative."""
        depth = len(self.heads.blocks)
        states, wanted = [], []
        for example in examples:
            tokens = torch.tensor(example.text.tokens)
            labels = functional.pad(self._label[tokens], (0, depth + 1), value=-100)
            first, end = max(0, example.text.first - 2), len(tokens) - 2
            states.append(example.states[first:end].float())
            wanted.append(torch.stack([labels[first + 2 + i : end + 2 + i] for i in range(depth)], 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            found = self.heads(torch.cat(states))
        labels = torch.cat(wanted)
        return [(logits.float(), labels[:, i]) for i, logits in enumerate(found)]

    def _loss(self, examples: Sequence[Example]) -> tuple[Tensor, Measured]:
        loss, right, so_far = torch.zeros(()), [], None
        for i, (logits, labels) in enumerate(self._pairs(examples)):
            loss = loss + _DECAY**i * torch.nan_to_num(functional.cross_entropy(logits, labels))
            hit = logits.argmax(-1) == labels
            tried = torch.ones_like(hit) if so_far is None else so_far
            right.append(float((hit & tried).sum()) / max(1, int(tried.sum())))
            so_far = hit & tried
        weights = sum(_DECAY**i for i in range(len(right)))
        return loss, Measured(float(loss.detach()) / weights, right)


def save_heads(heads: TrainedMedusa, lm_head: Tensor, right: list[list[float]], out: Path) -> None:
    """``lm_head`` [vocabulary, hidden]: the model's. Weights in float16; each head has its own copy, as the layout
    wants it."""
    weights: dict[str, Tensor] = {}
    for i, block in enumerate(heads.blocks):
        weights[f"{i}.0.linear.weight"] = block.weight.detach().half()
        weights[f"{i}.0.linear.bias"] = block.bias.detach().half()
        weights[f"{i}.1.weight"] = lm_head.half().clone()
    part = out / "medusa_lm_head.safetensors.part"
    save_file(weights, part, metadata={"format": "pt"})
    part.replace(out / "medusa_lm_head.safetensors")
    config = {"medusa_num_heads": len(heads.blocks), "medusa_num_layers": 1, "medusa_right": right}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def train_heads(
    folder: Path, texts: Sequence[Sequenced], out: Path, settings: Settings, *, report: Reporter = None
) -> TrainedMedusa:
    """Writes the heads to ``out`` now and then. Raises ``StartupError``."""
    config = family_of(folder)
    dtype = pick_dtype("auto", folder, _CPU)
    longest = max(len(text.tokens) for text in texts)
    model = load_model(folder, _CPU, dtype, max_model_len=longest)
    ids = vocabulary(texts, settings.vocab, config.vocab_size)
    lm_head = own_weights(folder, config, model, range(config.vocab_size))["lm_head.weight"].half()
    say(report, f"reading the hidden states of {sum(len(text.tokens) for text in texts)} tokens")
    states = StateReader(model, (), dtype, longest).read(texts)
    del model
    heads = TrainedMedusa(config.hidden, settings.recipe.depth, lm_head[ids].float())
    examples = [Example(text, one) for text, one in zip(texts, states, strict=True)]
    held_out, learnt = apart(examples)
    trainer = MedusaTrainer(heads, ids, config.vocab_size, settings.recipe, autocast=dtype != torch.float32)
    source = batches(learnt, settings.recipe.tokens, Random(1))
    for step, done, last in steps(settings):
        found = trainer.learn(next(source), done)
        if (step + 1) % settings.every == 0 or last:
            save_heads(heads, lm_head, trainer.ranks(held_out), out)
            say(report, line(step, found, trainer.measure(held_out)))
    return heads
