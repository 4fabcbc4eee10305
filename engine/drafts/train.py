"""Training of an EAGLE-3 head by what the model says where a text goes on.

As in the paper (https://arxiv.org/abs/2503.01840, *training-time test*) the head is trained on what it will see: the
second draft token and those after it follow from its own hidden states. It learns the model's distributions over the
draft vocabulary, which tell more of each place than a token does, and as much the text's tokens, as greedy answers are
to be guessed: where a tree branches is decided by how likely the head takes a token to be the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn import functional

from engine.drafts.head import TrainedHead
from engine.drafts.texts import Sequenced

_DECAY = 0.8
"""Weight of each further draft token in the loss."""


@dataclass(frozen=True, slots=True)
class Recipe:
    steps: int
    peak: float = 5e-4
    """The highest learning rate."""
    tokens: int = 512
    """Of a step."""
    depth: int = 3
    """Draft tokens that follow from one another."""
    warmup: int = 10
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Example:
    text: Sequenced
    states: Tensor
    """The model's [tokens, 4 * hidden]: of three layers, and what the LM head reads; for Medusa heads that alone."""


@dataclass(frozen=True, slots=True)
class Measured:
    loss: float
    right: list[float]
    """By draft token, how often it is the text's, if those before it were."""

    @property
    def accepted(self) -> float:
        """Draft tokens accepted of as many, were the texts what the model says."""
        chance, total = 1.0, 0.0
        for share in self.right:
            chance *= share
            total += chance
        return total


def vocabulary(texts: Sequence[Sequenced], most: int, vocab: int) -> list[int]:
    """The tokens that are most frequent in what is to be proposed, in order; of equals the lowest."""
    counts = Counter(token for text in texts for token in text.tokens[text.first :])
    chosen = [token for token, _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]]
    if len(chosen) < min(most, vocab):
        # Low ids are frequent tokens in most vocabularies.
        more = (token for token in range(vocab) if token not in counts)
        chosen += [token for token, _ in zip(more, range(min(most, vocab) - len(chosen)), strict=False)]
    return sorted(chosen)


def rate_of(recipe: Recipe, step: int, done: float) -> float:
    """The learning rate: a linear warm-up, then a cosine down to a twentieth."""
    if step < recipe.warmup:
        return recipe.peak * (step + 1) / recipe.warmup
    return recipe.peak * (0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def labels_of(ids: Sequence[int], vocab: int) -> Tensor:
    """int64 [vocab]: the place of each token among the draft vocabulary ``ids``, or -100."""
    labels = torch.full((vocab,), -100)
    labels[torch.tensor(ids)] = torch.arange(len(ids))
    return labels


class HeadTrainer:
    def __init__(
        self,
        head: TrainedHead,
        embed: Callable[[Tensor], Tensor],
        says: Callable[[Tensor], Tensor],
        ids: Sequence[int],
        vocab: int,
        recipe: Recipe,
        *,
        autocast: bool = True,
    ) -> None:
        """``embed``: the model's embedding; ``says``: its logits of the draft vocabulary by what its LM head reads.
        ``ids``: the draft vocabulary; ``vocab``: the size of the model's."""
        self.head = head
        self._embed = embed
        self._says = says
        self._recipe = recipe
        self._autocast = autocast
        self._label = labels_of(ids, vocab)
        self._optimizer = torch.optim.AdamW(
            head.parameters(), lr=recipe.peak, betas=(0.9, 0.95), weight_decay=recipe.weight_decay, fused=True
        )
        self.step = 0

    def learn(self, examples: Sequence[Example], done: float) -> Measured:
        """One step. ``done``: the part of the training that lies behind, by steps or by time."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate_of(self._recipe, self.step, done)
        loss, measured = self._loss(examples)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self._optimizer.step()
        self.step += 1
        return measured

    @torch.no_grad()
    def measure(self, examples: Sequence[Example]) -> Measured:
        found = [
            self._loss(batch)[1] for batch in batches(examples, self._recipe.tokens, Random(0), rounds=1)
        ]
        depth = range(self._recipe.depth)
        return Measured(
            sum(one.loss for one in found) / len(found),
            [sum(one.right[i] for one in found) / len(found) for i in depth],
        )

    def _loss(self, examples: Sequence[Example]) -> tuple[Tensor, Measured]:
        depth, hidden_size = self._recipe.depth, self.head.shape.hidden
        longest = max(len(example.text.tokens) for example in examples)
        tokens = torch.zeros(len(examples), longest + depth, dtype=torch.int64)
        # By place, whether it is one of a text's own and what is to be proposed there.
        wanted = torch.zeros(len(examples), longest + depth, dtype=torch.bool)
        length = longest - 1
        states = examples[0].states.new_zeros(len(examples), length, examples[0].states.shape[1])
        for row, example in enumerate(examples):
            count = len(example.text.tokens)
            tokens[row, :count] = torch.tensor(example.text.tokens)
            wanted[row, max(2, example.text.first) : count] = True
            states[row, : count - 1] = example.states[: count - 1]
        read, last = states.split([states.shape[2] - hidden_size, hidden_size], 2)
        # Of prompts the head's first keys and values are all that is needed.
        start = max(0, min(example.text.first for example in examples) - 2)
        chains = length - start
        mask = torch.ones(chains, length, dtype=torch.bool).tril(start)[None, None]
        embeddings = self._embed(tokens[:, 1:].flatten()).view(len(examples), longest + depth - 1, -1).float()
        loss, total, right = torch.zeros(()), 0.0, []
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            found = self.head(embeddings, read.float(), mask, depth)
            so_far = torch.ones(len(examples), chains, dtype=torch.bool)
            for step, hidden in enumerate(found):
                begin = start + step + 2
                inside = wanted[:, begin : begin + chains]
                labels = self._label[tokens[:, begin : begin + chains]]
                # Tokens that are not among the drafts count as wrong, and there is nothing to learn from them.
                row, place = (inside & (labels >= 0)).nonzero(as_tuple=True)
                logits = self.head.logits(hidden[row, place]).float().log_softmax(-1)
                with torch.no_grad():
                    aim = self._says(last[row, place + begin - 1]).float().log_softmax(-1)
                divergence = functional.kl_div(logits, aim, reduction="sum", log_target=True)
                missed = functional.nll_loss(logits, labels[row, place], reduction="sum")
                one = (divergence + missed) / (2 * max(1, len(row)))
                loss = loss + _DECAY**step * one
                total += _DECAY**step
                hit = torch.zeros(len(examples), chains, dtype=torch.bool)
                hit[row, place] = logits.argmax(-1) == labels[row, place]
                tried = so_far & inside
                right.append(float((hit & tried).sum()) / max(1, int(tried.sum())))
                so_far = so_far & hit
        return loss, Measured(float(loss.detach()) / total, right)


def batches(
    examples: Sequence[Example], tokens: int, random: Random, *, rounds: int | None = None
) -> Iterator[list[Example]]:
    """Texts of about ``tokens`` tokens together, all once in each round; for ever unless ``rounds`` says how often."""
    done = 0
    while rounds is None or done < rounds:
        # Texts of about the same length are together, as the shorter are padded.
        order = sorted(examples, key=lambda example: len(example.text.tokens) + random.random() * 16)
        groups: list[list[Example]] = [[]]
        for example in order:
            if groups[-1] and (len(groups[-1]) + 1) * len(example.text.tokens) > tokens:
                groups.append([])
            groups[-1].append(example)
        random.shuffle(groups)
        yield from groups
        done += 1
