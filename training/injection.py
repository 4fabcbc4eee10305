"""Trains the injection guard: ``python -m training.injection [--data FOLDER] [--cache FILE]``.

Writes ``gateway/guards/scanners/data/injection.json`` (the fast check), ``gateway/sidecar/heads/injection.npz`` (the
model check's head) and, beside it, ``injection.json`` with the figures of cross-validation. What is shipped is trained
on all texts. The cache keeps embeddings between runs.

Users' texts and tools' results have weights of their own, as what a user may ask is an attack in a tool's result. The
figures that count are those of sources that were left out: texts resemble the others of their source, be they attacks
or not, and what comes from outside resembles none.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

from gateway.guards.evaluation import INJECTION_CLEAR, INJECTION_WEIGHTS, Wording, plain  # noqa: E402
from gateway.sidecar.models.embedder import BuiltInEmbedder  # noqa: E402
from training.injection_parts import Parts, wording  # noqa: E402
from training.injection_texts import OWN, Text, fold_of, texts, weights  # noqa: E402

log = logging.getLogger("train_injection")

HEAD = ROOT / "gateway/sidecar/heads/injection.npz"
ORIGINS = ("user", "tool")
POOLS = ("mean1", "mean3", "mean5", "mean6")
HIDDEN, EPOCHS, NETS = 48, 3, 2
SHARE = {"user": 0.25, "tool": 0.5}
"""Of the head in what the model check says; the rest is the fast check's."""
UNSEEN, UNSEEN_ONE = 0.01, 0.01
"""Shares of harmless texts that may be flagged: in the mean over sources that were left out, and of each of them, where
it has ``ENOUGH`` texts. NotInject, written to be taken for attacks, may have ``HARD`` times as many."""
ENOUGH, HARD = 100, 5


class Encoder:
    """The model's poolings of texts, which are kept."""

    def __init__(self, cache: Path | None) -> None:
        self._embedder = BuiltInEmbedder()
        self._rows = [self._embedder.pools.index(name) for name in POOLS]
        self._cache = cache
        self._known: dict[str, np.ndarray] = {}
        if cache and cache.exists():
            with np.load(cache) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))
        self._size = len(self._known)

    def __call__(self, made: Sequence[str]) -> np.ndarray:
        keys = [sha1(text.encode()).hexdigest() for text in made]
        new = {key: text for key, text in zip(keys, made, strict=True) if key not in self._known}
        todo = sorted(new.items(), key=lambda each: len(each[1]))
        for start in range(0, len(todo), 16):
            part = todo[start : start + 16]
            found = self._embedder.encode([text for _, text in part])
            for (key, _), encoding in zip(part, found, strict=True):
                self._known[key] = encoding[self._rows].reshape(-1).astype(np.float16)
        return np.stack([self._known[key] for key in keys]).astype(np.float32)

    def save(self) -> None:
        if self._cache and len(self._known) > self._size:
            keys = np.array(list(self._known))
            np.savez(self._cache, keys=keys, vectors=np.stack(list(self._known.values())))
            self._size = len(self._known)


def train_head(x: np.ndarray, made: Sequence[Text]) -> dict[str, np.ndarray]:
    """Nets of one hidden layer, side by side, whose logits are averaged."""
    mean, scale = x.mean(0), x.std(0) + 1e-3
    inputs = torch.tensor((x - mean) / scale)
    target = torch.tensor([one.attack for one in made], dtype=torch.float32)
    weight = torch.tensor(weights(made, [1.0] * len(made)), dtype=torch.float32)
    nets = []
    for seed in range(NETS):
        torch.manual_seed(seed)
        order = np.random.default_rng(seed)
        net = torch.nn.Sequential(
            torch.nn.Dropout(0.5), torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Dropout(0.5),
            torch.nn.Linear(HIDDEN, 1),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-1)
        steps = EPOCHS * -(-len(x) // 256)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        for _ in range(EPOCHS):
            for batch in torch.tensor(order.permutation(len(x))).split(256):
                optimizer.zero_grad()
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    net(inputs[batch])[:, 0], target[batch], weight[batch]
                )
                loss.backward()
                optimizer.step()
                schedule.step()
        nets.append(net)
    first, last = [net[1] for net in nets], [net[4] for net in nets]
    # The inputs' scaling is part of the first layer, so that heads of both origins stand side by side.
    w0 = torch.cat([layer.weight for layer in first]).detach().numpy().T / scale[:, None]
    w0 = w0.astype(np.float16).astype(np.float32)  # as it is kept, or the bias would not fit it
    b0 = torch.cat([layer.bias for layer in first]).detach().numpy() - mean @ w0
    return {
        "w0": w0,
        "b0": b0,
        "w1": (torch.cat([layer.weight for layer in last], 1) / NETS).detach().numpy().T,
        "b1": (sum(layer.bias for layer in last) / NETS).detach().numpy(),
    }


def head_log_odds(head: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return (np.maximum(x @ head["w0"] + head["b0"], 0) @ head["w1"] + head["b1"])[:, 0]


def side_by_side(heads: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of one head with a label for each of ``heads``."""
    width = len(next(iter(heads.values()))["w0"])
    sizes = [len(head["b0"]) for head in heads.values()]
    w1 = np.zeros((sum(sizes), len(heads)))
    for number, head in enumerate(heads.values()):
        w1[sum(sizes[:number]) : sum(sizes[: number + 1]), number] = head["w1"][:, 0]
    return {
        "pools": np.array(POOLS),
        "labels": np.array(list(heads)),
        "mean": np.zeros(width, np.float16),
        "scale": np.ones(width, np.float16),
        "w0": np.concatenate([head["w0"] for head in heads.values()], 1).astype(np.float16),
        "b0": np.concatenate([head["b0"] for head in heads.values()]).astype(np.float16),
        "w1": w1.astype(np.float16),
        "b1": np.concatenate([head["b1"] for head in heads.values()]).astype(np.float16),
    }


@dataclass
class Scores:
    """Log-odds of texts by weights that had not seen them; -inf for those that are trained on always."""

    fast: np.ndarray
    head: np.ndarray
    """The highest of what the model reads of a text."""


def read(made: Sequence[Text], fast: Wording, encoder: Encoder) -> tuple[np.ndarray, np.ndarray]:
    """The poolings of what the model reads of texts, and which text each is of."""
    owner, parts = [], []
    for index, one in enumerate(made):
        text = plain(one.text)
        for start, end in fast.suspects(text):
            owner.append(index)
            parts.append(text[start:end])
    return encoder(parts), np.array(owner)


def unseen(made: Sequence[Text], parts: Parts, folds: np.ndarray, encoder: Encoder) -> Scores:
    """``folds`` has a number for each text; -1 is trained on always."""
    found = Scores(np.full(len(made), -np.inf), np.full(len(made), -np.inf))
    x, owner = read(made, wording(parts.fit(folds != -2)), encoder)
    for fold in sorted(set(folds.tolist()) - {-1}):
        test = np.flatnonzero(folds == fold)
        fast = wording(parts.fit(folds != fold))
        rows = np.flatnonzero(folds[owner] != fold)
        head = train_head(x[rows], [made[owner[row]] for row in rows])
        mine, of = read([made[index] for index in test], fast, encoder)
        np.maximum.at(found.head, test[of], head_log_odds(head, mine))
        for index in test:
            found.fast[index] = fast.log_odds(made[index].text)
        encoder.save()
        log.info("%s", f"{parts.origin}, fold {fold}: {len(test)} texts")
    return found


def shift(made: Sequence[Text], left_out: np.ndarray) -> float:
    """The most that may be added to log-odds within ``UNSEEN`` and ``UNSEEN_ONE``."""
    sources = sorted({one.source for one in made if not one.attack and one.source != OWN})
    of = {name: np.array([one.source == name and not one.attack for one in made]) for name in sources}
    of = {name: rows for name, rows in of.items() if rows.sum() >= ENOUGH}

    def kept(candidate: float) -> bool:
        flagged = {name: float((left_out[rows] + candidate >= 0).mean()) for name, rows in of.items()}
        return sum(flagged.values()) / len(of) <= UNSEEN and all(
            share <= UNSEEN_ONE * (HARD if name == "NotInject" else 1) for name, share in flagged.items()
        )

    return round(float(max(candidate for candidate in np.arange(-12, 6, 0.02) if kept(candidate))), 3)


def served(fast: np.ndarray, stacked: np.ndarray) -> np.ndarray:
    """Log-odds that decide: the fast check's where it is sure."""
    low, high = (np.log(bound / (1 - bound)) for bound in INJECTION_CLEAR)
    return np.where((fast <= low) | (fast >= high), fast, stacked)


def figures(made: Sequence[Text], log_odds: np.ndarray) -> dict[str, Any]:
    """Shares flagged, each with the number of texts, by source; and how well the scores part attacks from the rest."""
    attack = np.array([one.attack == 1 for one in made])
    public = np.array([one.source != OWN for one in made])
    source = np.array([one.source for one in made])

    def share(rows: np.ndarray) -> list[float]:
        return [round(float((log_odds[rows] >= 0).mean()), 4), int(rows.sum())]

    def by_source(rows: np.ndarray) -> dict[str, list[float]]:
        return {name: share(rows & (source == name)) for name in sorted(set(source[rows]))}

    scores = np.nan_to_num(log_odds[public], neginf=-99.0)
    return {
        "found": share(attack & public),
        "AUC": round(float(roc_auc_score(attack[public], scores)), 4),
        "found by source": by_source(attack & public),
        "flagged": by_source(~attack & public),
    }


def train(made: Sequence[Text], origin: str, encoder: Encoder) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The figures, the fast check's weights and the head for texts of one origin."""
    parts = Parts(made, origin)
    log.info("%s", f"{origin}: {len(made)} texts, {len(parts.owner)} parts")
    left = unseen(made, parts, fold_of(made), encoder)
    head, own = SHARE[origin], 1 - SHARE[origin]
    stacked = head * left.head + own * left.fast
    fast_shift, stack_shift = shift(made, left.fast), shift(made, stacked)
    fast = left.fast + fast_shift
    report: dict[str, Any] = {
        "shift": {"fast": fast_shift, "stacked": stack_shift},
        "sources left out": figures(made, served(fast, stacked + stack_shift)),
        "fast check alone": figures(made, fast),
    }
    low, high = (np.log(bound / (1 - bound)) for bound in INJECTION_CLEAR)
    clear = (fast <= low) | (fast >= high)
    of_public = np.array([one.source != OWN for one in made])
    attack = np.array([one.attack == 1 for one in made])
    report["decided by the fast check"] = {
        "harmless": round(float(clear[~attack & of_public].mean()), 4),
        "attacks": round(float(clear[attack & of_public].mean()), 4),
    }
    log.info("%s", json.dumps(report, indent=1))
    made_weights = parts.fit(np.ones(len(made), bool))
    x, owner = read(made, wording(made_weights), encoder)
    # The stack takes the fast check's log-odds as they are served, shift and all.
    made_weights["bias"] = round(made_weights["bias"] + fast_shift, 4)
    made_weights["stack"] = [head, own, round(stack_shift - own * fast_shift, 4)]
    return report, made_weights, train_head(x, [made[index] for index in owner])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    made, encoder = texts(options.data), Encoder(options.cache)
    reports, fast, heads = {}, {}, {}
    for origin in ORIGINS:
        mine = [one for one in made if origin in one.origins]
        reports[origin], fast[origin], heads[origin] = train(mine, origin, encoder)
    INJECTION_WEIGHTS.parent.mkdir(exist_ok=True)
    written = json.dumps(fast, ensure_ascii=False, indent=0, sort_keys=True) + "\n"
    INJECTION_WEIGHTS.write_text(written, "utf-8")
    np.savez_compressed(HEAD, **side_by_side(heads))
    HEAD.with_suffix(".json").write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    main()
