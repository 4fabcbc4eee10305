"""Trains the toxicity guard: ``python -m training.toxicity [--data FOLDER] [--cache FILE]``.

Writes ``gateway/guards/scanners/data/toxicity.json`` (the fast check, and how both checks are made one),
``gateway/sidecar/heads/toxicity.npz`` (the head) and beside it ``toxicity.json`` with the figures of cross-validation,
by which every choice here was made. What is shipped is trained on all rows. The cache keeps embeddings between runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Mapping, Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy import sparse  # noqa: E402
from sklearn.feature_extraction.text import CountVectorizer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

from gateway.guards.evaluation import NGRAM_SMOOTHING as SMOOTHING  # noqa: E402
from gateway.guards.evaluation import TOXICITY_CATEGORIES as CATEGORIES  # noqa: E402
from gateway.guards.evaluation import Ngrams  # noqa: E402
from gateway.guards.evaluation import ngram_features as features  # noqa: E402
from gateway.guards.evaluation import ngram_tokens as tokens  # noqa: E402
from gateway.sidecar.models.embedder import BuiltInEmbedder  # noqa: E402
from training.toxicity_samples import Sample, samples  # noqa: E402

FAST = ROOT / "gateway/guards/scanners/data/toxicity.json"
HEAD = ROOT / "gateway/sidecar/heads/toxicity.npz"
POOLS = ("mean1", "mean3", "mean4", "mean5", "mean6", "max6")
NETS = 2
HIDDEN, EPOCHS, DROPOUT, DECAY, RATE, BATCH = 64, 10, 0.5, 0.05, 2e-3, 128
C, KEPT, SCALE = 100, 12_000, 100
"""The inverse strength of regularisation; features that are kept; weights are written as integers of 1/SCALE."""
WEIGHT = {
    "hatecheck": 1.0,
    "moderation": 2.0,
    "xstest": 1.0,
    "tweets": 0.2,  # labelled by the crowd, and "offensive" in most cases for a single word
    "questions": 0.3,
    "routing": 0.3,
    "contrasts": 0.5,
}
SHARE_HEAD, SHARE_FAST = 0.9, 0.2
OFFSETS = {"hate": -0.25, "harassment": -0.5, "violence": -0.5, "sexual": -0.25, "self_harm": 1.0}
"""Log-odds of the guard: those of the head and of the fast check, weighted, and an offset by category: so much that at
0.5 few harmless texts are flagged, those with harsh words and those of the moderation set included."""
CLEAR = (0.004, 0.99)
MOST_WINDOWS = 64
FOLDS = 5
UNKNOWN = float("nan")


class Embeddings:
    """Poolings by text, in float16. What is in the cache file is not computed again."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._embedder = BuiltInEmbedder()
        self._known: dict[str, np.ndarray] = {}
        if cache is not None and cache.exists():
            with np.load(cache) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["values"], strict=True))

    def windows(self, text: str) -> list[str]:
        return [text[start:end] for start, end in self._embedder.windows(text, MOST_WINDOWS)]

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        keys = [sha1(text.encode()).hexdigest() for text in texts]
        new = sorted(
            {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}.items()
        )
        rows = [self._embedder.pools.index(name) for name in POOLS]
        for start in range(0, len(new), 16):
            part = new[start : start + 16]
            encoded = self._embedder.encode([text for _, text in part])
            for (key, _), encoding in zip(part, encoded, strict=True):
                self._known[key] = encoding[rows].reshape(-1).astype(np.float16)
        if new and self._cache is not None:
            np.savez(self._cache, keys=np.array([*self._known]), values=np.stack([*self._known.values()]))
        return np.stack([self._known[key] for key in keys]).astype(np.float32)


def fit_fast(
    counts: sparse.csr_matrix, names: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> dict[str, Any]:
    """The fast check as ``Ngrams`` has it, and as it is written. ``counts`` has a row a text, a column a feature."""
    sizes = np.asarray(counts.sum(1)).ravel()
    often = np.asarray(counts.sum(0)).ravel()
    names, counts, seen = names[often >= 2], counts[:, often >= 2], np.sqrt(often[often >= 2])
    x = (sparse.diags(1 / np.sqrt(sizes + SMOOTHING)) @ counts).tocsr()
    found, bias = np.zeros((len(CATEGORIES), x.shape[1])), []
    for index in range(len(CATEGORIES)):
        known = ~np.isnan(targets[:, index])
        model = LogisticRegression(C=C, solver="liblinear", random_state=0)
        model.fit(x[known], targets[known, index], sample_weight=weight[known])
        found[index] = model.coef_[0]
        bias.append(round(float(model.intercept_[0]), 3))
    least = np.sort((np.abs(found) * seen).max(0))[-KEPT]
    weights = {}
    for column, name in enumerate(names):
        if np.abs(found[:, column]).max() * seen[column] >= least:
            kept = [
                (i, round(SCALE * w))
                for i, w in enumerate(found[:, column])
                if abs(w) * seen[column] >= least / 3
            ]
            weights[name] = [value for pair in kept for value in pair]
    return {"labels": CATEGORIES, "bias": bias, "scale": SCALE, "weights": weights}


def fit_head(x: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    mean, scale = x.mean(0), x.std(0) + 1e-6
    inputs = torch.from_numpy((x - mean) / scale)
    nets = [_net(inputs, targets, weight, seed) for seed in range(NETS)]
    first, last = [net[1] for net in nets], [net[4] for net in nets]
    arrays = {  # side by side, as one net whose log-odds are the mean of theirs
        "w0": torch.cat([layer.weight for layer in first]).T,
        "b0": torch.cat([layer.bias for layer in first]),
        "w1": torch.cat([layer.weight for layer in last], 1).T / NETS,
        "b1": torch.stack([layer.bias for layer in last]).mean(0),
    }
    return {
        "pools": np.array(POOLS),
        "labels": np.array(CATEGORIES),
        "mean": mean.astype(np.float16),
        "scale": scale.astype(np.float16),
        **{name: value.detach().numpy().astype(np.float16) for name, value in arrays.items()},
    }


def _net(inputs: torch.Tensor, targets: np.ndarray, weight: np.ndarray, seed: int) -> torch.nn.Sequential:
    """The highest output is also held against whether any category applies, where that is known: a text that may be
    harassment, as insults of one person are in HateCheck, does not count as harmless."""
    torch.manual_seed(seed)
    known = torch.from_numpy(~np.isnan(targets))
    wanted = torch.from_numpy(np.nan_to_num(targets)).float()
    by_row = torch.from_numpy(weight).float()
    anything = wanted.max(1).values
    sure = (known[:, CATEGORIES.index("harassment")] | (anything == 1)).float() * by_row
    net = torch.nn.Sequential(
        torch.nn.Dropout(DROPOUT),
        torch.nn.Linear(inputs.shape[1], HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(DROPOUT),
        torch.nn.Linear(HIDDEN, len(CATEGORIES)),
    )
    loss = torch.nn.BCEWithLogitsLoss(reduction="none")
    steps = len(inputs) // BATCH
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(inputs))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            out = net(inputs[rows])
            each = (loss(out, wanted[rows]) * known[rows]).sum(1) * by_row[rows]
            whole = loss(out.max(1).values, anything[rows]) * sure[rows]
            optimizer.zero_grad()
            ((each + whole).sum() / BATCH).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def head_log_odds(head: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    value = {name: head[name].astype(np.float32) for name in ("mean", "scale", "w0", "b0", "w1", "b1")}
    hidden = np.maximum((x - value["mean"]) / value["scale"] @ value["w0"] + value["b0"], 0)
    return hidden @ value["w1"] + value["b1"]


Scores = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Log-odds: of the fast check by text and by window, and of the head by window."""


class Corpus:
    """All samples, and the windows of those that are longer than the embedder's input."""

    def __init__(self, found: Sequence[Sample], embeddings: Embeddings) -> None:
        self.samples = found
        self.texts = [sample.text for sample in found]
        self.source = np.array([sample.source for sample in found])
        self.kind = np.array([sample.kind for sample in found])
        self.targets = np.array([[s.labels.get(name, UNKNOWN) for name in CATEGORIES] for s in found])
        self.weight = np.array([WEIGHT[sample.source] for sample in found])
        vectorizer = CountVectorizer(analyzer=features, binary=True, dtype=np.float64)
        self.counts = vectorizer.fit_transform(self.texts)
        self.features = vectorizer.get_feature_names_out()
        parts = [embeddings.windows(text) for text in self.texts]
        self.windows = [window for part in parts for window in part]
        self.owner = np.repeat(np.arange(len(found)), [len(part) for part in parts])
        # All windows of a text have its labels, though one of them may have earned them for all.
        self.window_weight = (self.weight / np.sqrt([len(part) for part in parts]))[self.owner]
        self.x = embeddings(self.windows)

    def train(self, rows: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        inside = rows[self.owner]
        return (
            fit_fast(self.counts[rows], self.features, self.targets[rows], self.weight[rows]),
            fit_head(self.x[inside], self.targets[self.owner][inside], self.window_weight[inside]),
        )

    def scores(self, fast: Ngrams, head: Mapping[str, np.ndarray], rows: np.ndarray) -> Scores:
        inside = np.flatnonzero(rows[self.owner])
        return (
            np.array([fast.log_odds(self.texts[index]) for index in np.flatnonzero(rows)]),
            np.array([fast.log_odds(self.windows[index]) for index in inside]),
            head_log_odds(head, self.x[inside]),
        )

    def cross_validated(self, group: np.ndarray) -> Scores:
        """Scores of all texts by models that have seen none of their group. Contrasts are always in training."""
        sizes = (len(group), len(self.owner), len(self.owner))
        found = tuple(np.full((size, len(CATEGORIES)), UNKNOWN) for size in sizes)
        for fold in range(FOLDS):
            held = group == fold
            fast, head = self.train(~held)
            inside = held[self.owner]
            scores = self.scores(ngrams(fast), head, held)
            for whole, rows, part in zip(found, (held, inside, inside), scores, strict=True):
                whole[rows] = part
        return found[0], found[1], found[2]

    def combined(self, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        """Of the fast check, and of both checks: the highest of a text's windows."""
        quick, wording, head = scores
        highest = np.full(quick.shape, -np.inf)
        np.maximum.at(highest, self.owner, SHARE_FAST * wording + SHARE_HEAD * head + [*OFFSETS.values()])
        return quick, highest


def ngrams(fast: Mapping[str, Any]) -> Ngrams:
    return Ngrams(fast["labels"], fast["bias"], fast["weights"], scale=fast["scale"])


def figures(corpus: Corpus, quick: np.ndarray, both: np.ndarray) -> dict[str, float]:
    """AUC of the model check and of the fast one, and shares that the whole guard flags at 0.5."""
    low, high = (np.log(bound / (1 - bound)) for bound in CLEAR)
    decided = (quick.max(1) <= low) | (quick.max(1) >= high)
    guard = np.where(decided, quick.max(1), both.max(1))
    hatecheck, moderation = corpus.source == "hatecheck", corpus.source == "moderation"
    hateful, unsafe = corpus.targets[:, 0] == 1, corpus.kind == "any"
    found = {}
    for name, scores in (("fast", quick), ("fast and head", both)):
        found[f"HateCheck AUC, hate, {name}"] = _auc(hateful[hatecheck], scores[hatecheck, 0])
        found[f"HateCheck AUC, any category, {name}"] = _auc(hateful[hatecheck], scores[hatecheck].max(1))
        found[f"moderation AUC, any category, {name}"] = _auc(unsafe[moderation], scores[moderation].max(1))
        for index, category in enumerate(CATEGORIES):
            rows = moderation & ~np.isnan(corpus.targets[:, index])
            found[f"moderation AUC, {category}, {name}"] = _auc(
                corpus.targets[rows, index], scores[rows, index]
            )
    found["HateCheck AUC, whole guard"] = _auc(hateful[hatecheck], guard[hatecheck])
    found["moderation AUC, whole guard"] = _auc(unsafe[moderation], guard[moderation])
    shares = {
        "HateCheck hateful": hatecheck & hateful,
        "HateCheck non-hateful": hatecheck & ~hateful,
        "moderation unsafe": moderation & unsafe,
        "moderation safe": moderation & ~unsafe,
        "XSTest safe": (corpus.source == "xstest") & (corpus.kind == "safe"),
        "XSTest unsafe": (corpus.source == "xstest") & (corpus.kind == "unsafe"),
        "questions": corpus.source == "questions",
        "routing prompts": corpus.source == "routing",
    }
    for name, rows in shares.items():
        found[f"{name}, flagged"] = round(float((guard[rows] >= 0).mean()), 4)
        found[f"{name}, flagged by the fast check alone"] = round(float((quick[rows].max(1) >= 0).mean()), 4)
        found[f"{name}, decided by the fast check"] = round(float(decided[rows].mean()), 4)
    return found


def _auc(truth: np.ndarray, scores: np.ndarray) -> float:
    return round(float(roc_auc_score(truth, scores)), 4)


def groups(corpus: Corpus) -> dict[str, np.ndarray]:
    """Folds: by rows; by HateCheck's sentence patterns, whoever they are said of; by its functionalities."""

    def folds(names: Sequence[str], seed: int) -> np.ndarray:
        order = sorted(set(names))
        random.Random(seed).shuffle(order)
        fold = {name: index % FOLDS for index, name in enumerate(order)}
        return np.array([fold[name] for name in names])

    rows = folds([f"{sample.source} {sample.text}" for sample in corpus.samples], 0)
    rows[corpus.source == "contrasts"] = -1
    patterns, functions = rows.copy(), rows.copy()
    at = corpus.source == "hatecheck"
    patterns[at] = folds([" ".join(tokens(text)) for text in np.array(corpus.texts, object)[at]], 1)
    functions[at] = folds(list(corpus.kind[at]), 2)
    return {"random rows": rows, "patterns left out": patterns, "functionalities left out": functions}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, help="an .npz file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    corpus = Corpus(samples(arguments.data), Embeddings(arguments.cache))
    fast, head = corpus.train(np.ones(len(corpus.texts), bool))
    both = {"head": SHARE_HEAD, "ngrams": SHARE_FAST, "offset": OFFSETS, "clear": CLEAR}
    FAST.parent.mkdir(exist_ok=True)
    FAST.write_text(
        json.dumps(both | fast, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    np.savez_compressed(HEAD, **head)
    report = {}
    for name, group in groups(corpus).items():
        report[name] = figures(corpus, *corpus.combined(corpus.cross_validated(group)))
        print(name, json.dumps(report[name], indent=1), flush=True)
        HEAD.with_suffix(".json").write_text(
            json.dumps({"cross-validated": report}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
