"""Train the tagger that finds names, places, organisations and addresses on the built-in embedder's hidden states.

    python -m training.entities [--data DIR]     # writes gateway/sidecar/heads/entities.zip and entities.json

Texts: ``pii.jsonl`` and ``broad/entities.jsonl`` of the data folder, sentences generated from ``entities_texts.yaml``,
and code, configuration and logs that hold no names. The figures are of texts that the weights have not seen: a fifth of
the templates and texts left out, and each source left out as a whole. One thread; half an hour.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import nn

from gateway.sidecar.models.embedder import builtin_folder
from gateway.sidecar.models.minilm import WIDTH, MiniLM, exact
from gateway.sidecar.models.tagger import KERNEL, SHAPES, WEIGHTS, Tagger, shapes, spans
from training.entities_texts import Labelled, generated, swapped

DATA = Path(__file__).parents[2] / "shared" / "data"
LABELS = ("PERSON", "LOCATION", "ORGANIZATION", "ADDRESS")
NAMES = {
    "STREET_ADDRESS": "ADDRESS",
    "GPE": "LOCATION",
    "PERSON": "PERSON",
    "ORGANIZATION": "ORGANIZATION",
    "person": "PERSON",
    "location": "LOCATION",
    "corporation": "ORGANIZATION",
    "group": "ORGANIZATION",
}
"""The data's labels; those of other things are none here."""
LAYERS = (0, 3, 5)
HIDDEN = 128
EPOCHS, BATCH, RATE = 6, 32, 3e-3
GENERATED = 5000
LOWERED = 0.15
"""Texts that are shown in lower case, as people type."""
THRESHOLD = 0.5
FIGURES = WEIGHTS.with_name("entities.json")

Array = np.ndarray


@dataclass
class Row:
    """A text as the tagger sees it."""

    text: Labelled
    words: list[tuple[int, int]]
    states: Array
    forms: tuple[Array, Array]
    """As it is written, and in lower case."""
    goal: Array
    """For each word 0, or its label's beginning or inside."""


def read(data: Path) -> list[Labelled]:
    texts: list[Labelled] = []
    for source, file in (("pii", data / "pii.jsonl"), ("wnut", data / "broad" / "entities.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                marked = [(NAMES.get(it["type"]), it["start"], it["end"]) for it in row["spans"]]
                found = tuple((label, start, end) for label, start, end in marked if label)
                texts.append(
                    Labelled(row["text"], found, source, _template(row) if source == "pii" else row["text"])
                )
    return texts


def harmless(data: Path) -> list[Labelled]:
    """Code, configuration and logs, which hold next to no names."""
    with (data / "broad" / "prompts.jsonl").open(encoding="utf-8") as lines:
        return [
            Labelled(row["text"][:700], (), "code", row["text"])
            for row in map(json.loads, lines)
            if row["source"] in ("source code", "configuration", "logs (loghub)")
        ]


def _template(row: dict) -> str:
    """The text with its entities left out: rows that differ in them alone share it."""
    text = row["text"]
    for it in sorted(row["spans"], key=lambda it: -it["start"]):
        text = text[: it["start"]] + "<>" + text[it["end"] :]
    return text


def seen(texts: Sequence[Labelled]) -> list[Row]:
    """Blocking; some 20 ms a text."""
    model = MiniLM(builtin_folder(), linear=exact)
    order = sorted(range(len(texts)), key=lambda at: len(texts[at].text))
    rows: list[Row | None] = [None] * len(texts)
    for start in range(0, len(order), 16):
        some = order[start : start + 16]
        for at, (words, states) in zip(
            some, model.words([texts[at].text for at in some], LAYERS), strict=True
        ):
            text = texts[at].text
            lower = text.lower() if len(text.lower()) == len(text) else text
            forms = (shapes(text, words), shapes(lower, words))
            rows[at] = Row(
                texts[at], words, states.numpy().astype(np.float16), forms, _goal(texts[at], words)
            )
    return [row for row in rows if row is not None and row.words]


def _goal(text: Labelled, words: Sequence[tuple[int, int]]) -> Array:
    goal = np.zeros(len(words), np.int64)
    for label, start, end in text.spans:
        inside = 0
        for at, (first, last) in enumerate(words):
            if first < end and start < last:
                goal[at] = 1 + 2 * LABELS.index(label) + inside
                inside = 1
    return goal


class Network(nn.Module):
    """The tagger's network, over texts laid end to end with zeros between."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.first = nn.Linear(len(LAYERS) * WIDTH + SHAPES, HIDDEN)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(HIDDEN, HIDDEN, KERNEL, padding=KERNEL // 2) for _ in range(2)
        )
        self.last = nn.Linear(HIDDEN, 1 + 2 * len(LABELS))

    def forward(self, x: torch.Tensor, is_word: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(self.drop(x))) * is_word
        for convolution in self.convolutions:
            x = x + torch.relu(convolution(self.drop(x).T[None])[0].T) * is_word
        return self.last(self.drop(x))


def fit(rows: Sequence[Row], seed: int = 1) -> dict[str, Array]:
    """The tagger's arrays."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    some = np.concatenate([row.states for row in chance.sample(list(rows), 800)]).astype(np.float32)
    mean, scale = some.mean(0), some.std(0) + 1e-4
    network = Network()
    descent = torch.optim.AdamW(network.parameters(), RATE, weight_decay=0.02)
    steps = EPOCHS * -(-len(rows) // BATCH)
    pace = torch.optim.lr_scheduler.OneCycleLR(descent, RATE, total_steps=steps)
    order = list(range(len(rows)))
    for _ in range(EPOCHS):
        chance.shuffle(order)
        for start in range(0, len(order), BATCH):
            inputs, goals = [], []
            for row in (rows[at] for at in order[start : start + BATCH]):
                forms = row.forms[chance.random() < LOWERED]
                inputs += [np.concatenate(((row.states.astype(np.float32) - mean) / scale, forms), 1), None]
                goals += [row.goal, np.full(KERNEL - 1, -1)]
            gap = np.zeros((KERNEL - 1, len(mean) + SHAPES), np.float32)
            x = torch.from_numpy(np.concatenate([gap if part is None else part for part in inputs]))
            goal = torch.from_numpy(np.concatenate(goals))
            odds = network(x, (goal >= 0).float()[:, None])
            loss = nn.functional.cross_entropy(odds, goal, ignore_index=-1)
            descent.zero_grad()
            loss.backward()
            descent.step()
            pace.step()
    return arrays(network, mean, scale)


def arrays(network: Network, mean: Array, scale: Array) -> dict[str, Array]:
    def half(x: torch.Tensor) -> Array:
        return x.detach().numpy().astype(np.float16)

    found = {
        "layers": np.array(LAYERS), "labels": np.array(LABELS),
        "mean": mean.astype(np.float16), "scale": scale.astype(np.float16),
        "w0": half(network.first.weight.T), "b0": half(network.first.bias),
        "w3": half(network.last.weight.T), "b3": half(network.last.bias),
    }  # fmt: skip
    for at, convolution in enumerate(network.convolutions, 1):
        found[f"w{at}"] = half(convolution.weight.permute(2, 1, 0))
        found[f"b{at}"] = half(convolution.bias)
    return found


def figures(tagger: Tagger, rows: Iterable[Row]) -> dict[str, float]:
    """F1 by span: of the same label, and overlapping; ``exact`` where the spans are the same."""
    hits, misses, false, same = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        chances = tagger.chances(row.states.astype(np.float32), row.forms[0])
        found = [one for one in spans(chances, row.words, tagger.labels) if one.score >= THRESHOLD]
        for label, start, end in row.text.spans:
            mine = [one for one in found if one.label == label and one.start < end and start < one.end]
            (hits if mine else misses)[label] += 1
            same[label] += any((one.start, one.end) == (start, end) for one in mine)
        for one in found:
            if not any(
                one.label == label and one.start < end and start < one.end
                for label, start, end in row.text.spans
            ):
                false[one.label] += 1

    def f1(hit: int, miss: int, wrong: int) -> float:
        return round(2 * hit / max(1, 2 * hit + miss + wrong), 3)

    told = {
        label: f1(hits[label], misses[label], false[label]) for label in LABELS if hits[label] + misses[label]
    }
    right, gone, wrong = hits.total(), misses.total(), false.total()
    return {
        "f1": f1(right, gone, wrong),
        "precision": round(right / max(1, right + wrong), 3),
        "recall": round(right / max(1, right + gone), 3),
        "exact": f1(same.total(), right + gone - same.total(), right + wrong - same.total()),
        **told,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    given = parser.parse_args()
    torch.set_num_threads(1)
    real = seen(read(given.data))
    plain = seen(harmless(given.data))
    made = seen(generated(GENERATED, random.Random(7)))
    # As they are and with other names in them: the templates of one source have few.
    varied = seen(
        [
            swapped(row.text, random.Random(crc32(row.text.text.encode())))
            for row in real
            if row.text.source == "pii"
        ]
    )
    by_name = {row.text.template: crc32(row.text.template.encode()) % 5 for row in (*real, *plain, *varied)}

    def left(row: Row) -> bool:
        return by_name[row.text.template] == 0

    told: dict[str, dict[str, float]] = {}

    def tell(what: str, tagger: Tagger, rows: Iterable[Row]) -> None:
        told[what] = figures(tagger, rows)
        print(what, told[what], flush=True)

    half = [row for row in plain if not left(row)]
    tagger = Tagger(fit([*(row for row in (*real, *varied) if not left(row)), *half, *made]))
    for source in ("pii", "wnut"):
        tell(
            f"{source}, a fifth left out",
            tagger,
            [row for row in real if left(row) and row.text.source == source],
        )
    unseen = [row for row in plain if left(row)]
    finds = sum(
        one.score >= THRESHOLD
        for row in unseen
        for one in spans(
            tagger.chances(row.states.astype(np.float32), row.forms[0]), row.words, tagger.labels
        )
    )
    told["code, configuration and logs, a fifth left out"] = {
        "finds": finds,
        "characters": sum(row.words[-1][1] for row in unseen),
    }
    print(told["code, configuration and logs, a fifth left out"], flush=True)
    for source in ("pii", "wnut"):
        tagger = Tagger(fit([*(row for row in (*real, *varied) if row.text.source != source), *half, *made]))
        tell(f"{source}, the source left out", tagger, [row for row in real if row.text.source == source])
    tagger = Tagger(fit([*half, *made]))
    for source in ("pii", "wnut"):
        tell(f"{source}, generated texts alone", tagger, [row for row in real if row.text.source == source])
    final = fit([*real, *varied, *plain, *made])
    with WEIGHTS.open("wb") as file:
        np.savez(file, **final)
    FIGURES.write_text(json.dumps({"labels": LABELS, "figures": told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
