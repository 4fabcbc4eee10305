"""Train the semantic cache's verifier: ``python -m training.verifier [--data DIR] [--embeddings FILE]``.

Everything that is reported, and every threshold, comes from predictions out of fold. Folds keep together questions that
occur in more than one pair, so that none stands on both sides. Deterministic.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from gateway.sidecar.semantic.alignment import BUCKETS, features, vocabulary
from gateway.sidecar.semantic.question import Question, read
from gateway.sidecar.semantic.rules import refusal
from gateway.sidecar.semantic.verifier import RADII, SHIPPED, crowding, pair, standard, unit

FOLDS = 5
SEEDS = 2
NETWORKS = 0.5
"""Their weight beside the trees."""
KNOWN = 1500
"""Questions of which it is kept where they lie."""
HIDDEN = 64
BUDGETS = (0.05, 0.06, 0.075, 0.1, 0.15, 0.2, 0.3)
"""Of the best pairs one in twenty-five is false by its label, often wrongly: no score keeps within less."""
EXACT = 1e3
"""The score of the same words."""
LIKELY = 1.0
"""The score from which on a curve is laid through the labels."""
LEAST = 300
"""Hits below which a false share says nothing: its standard error is a percent there."""


@dataclass
class Pairs:
    asked: list[str]
    stored: list[str]
    same: np.ndarray
    u: np.ndarray
    v: np.ndarray

    def __len__(self) -> int:
        return len(self.same)


def load(data: Path, embeddings: Path | None) -> Pairs:
    """``embeddings``: an npz with ``mean6``, rows of all ``a`` and then all ``b``; without it they are computed."""
    with (data / "question_pairs.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [row["a"] for row in rows] + [row["b"] for row in rows]
    if embeddings is not None:
        vectors = np.load(embeddings)["mean6"].astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    else:
        from gateway.sidecar.models.embedder import load as load_embedder

        vectors = embed(load_embedder("builtin"), texts)
    half = len(rows)
    same = np.array([int(row["same"]) for row in rows])
    return Pairs(texts[:half], texts[half:], same, vectors[:half], vectors[half:])


def embed(embedder: object, texts: list[str]) -> np.ndarray:
    """Sentence embeddings, in order."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    out: list[np.ndarray] = [np.empty(0)] * len(texts)
    for start in range(0, len(texts), 32):
        chosen = order[start : start + 32]
        for index, encoding in zip(chosen, embedder.encode([texts[i] for i in chosen]), strict=True):  # type: ignore[attr-defined]
            out[index] = np.frombuffer(embedder.sentence(encoding), dtype="<f4")  # type: ignore[attr-defined]
    return np.stack(out)


def folds(pairs: Pairs) -> np.ndarray:
    """A fold for each pair, by connected questions."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    keys = [(a.strip().lower(), b.strip().lower()) for a, b in zip(pairs.asked, pairs.stored, strict=True)]
    for a, b in keys:
        parent[root(a)] = root(b)
    _, group = np.unique([root(a) for a, _ in keys], return_inverse=True)
    return np.random.RandomState(0).permutation(group.max() + 1)[group] % FOLDS


def inverse_frequencies(questions: list[Question]) -> np.ndarray:
    counts = np.zeros(BUCKETS)
    for question in questions:
        counts[list(vocabulary(question))] += 1
    return np.log((len(questions) + 1) / (counts + 1)).astype(np.float16).astype(np.float32)


def crowded(pairs: Pairs, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vectors (int8) of the questions with most neighbours among the ``chosen`` pairs, and how crowded it is around
    both sides of all pairs, each judged without its own pair."""
    half = len(pairs)
    vectors = np.concatenate([pairs.u, pairs.v])
    texts = [text.strip().lower() for text in pairs.asked + pairs.stored]
    _, first, same_text = np.unique(texts, return_index=True, return_inverse=True)
    usable = first[np.tile(chosen, 2)[first]]
    degree = np.zeros(len(usable))
    for start in range(0, len(usable), 1024):
        rows = usable[start : start + 1024]
        near = vectors[rows] @ vectors[usable].T > RADII[1]
        near[rows[:, None] % half == usable[None] % half] = False
        degree[start : start + 1024] = near.sum(1)
    known = usable[np.argsort(-degree, kind="stable")[:KNOWN]]
    kept = np.round(vectors[known] / np.abs(vectors[known]).max(1, keepdims=True) * 127).astype(np.int8)
    there = unit(kept.astype(np.float32)).T
    near = np.empty((2 * half, len(RADII)), dtype=np.float32)
    for start in range(0, 2 * half, 1024):
        rows = np.arange(start, min(start + 1024, 2 * half))
        similar = vectors[rows] @ there
        similar[rows[:, None] % half == known[None] % half] = -1
        # A question is no neighbour to itself, in the pairs that are trained on.
        trained = np.tile(chosen, 2)[rows][:, None]
        similar[trained & (same_text[rows][:, None] == same_text[known][None])] = -1
        near[rows] = crowding(similar)
    a, b = near[:half], near[half:]
    return kept, np.concatenate([np.minimum(a, b), np.maximum(a, b)], axis=1)


def fit_trees(rows: np.ndarray, same: np.ndarray) -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(
        max_iter=300,
        learning_rate=0.04,
        max_leaf_nodes=10,
        min_samples_leaf=30,
        l2_regularization=5.0,
        random_state=0,
    ).fit(rows, same)


def fit_networks(rows: np.ndarray, same: np.ndarray) -> dict[str, np.ndarray]:
    """The networks' arrays, side by side as one wide layer."""
    mean, scale = rows.mean(0), 1 / (rows.std(0) + 1e-6)
    inputs, targets = torch.tensor(standard(rows, mean, scale)), torch.tensor(same, dtype=torch.float32)
    batches, epochs = len(rows) // 128, 10
    w0, b0, w1, b1 = [], [], [], []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Dropout(0.2),
            torch.nn.Linear(rows.shape[1], HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.4),
            torch.nn.Linear(HIDDEN, 1),
        )
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=epochs * batches)
        for _ in range(epochs):
            order = torch.randperm(len(rows))
            for step in range(batches):
                chosen = order[step * 128 : step * 128 + 128]
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    net(inputs[chosen])[:, 0], targets[chosen]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        w0.append(net[1].weight.detach().numpy().T)
        b0.append(net[1].bias.detach().numpy())
        w1.append(net[4].weight.detach().numpy()[0] * NETWORKS / SEEDS)
        b1.append(float(net[4].bias.detach()) * NETWORKS / SEEDS)
    return {
        "net_mean": mean.astype(np.float32),
        "net_scale": scale.astype(np.float32),
        "net_w0": np.concatenate(w0, axis=1).astype(np.float16),
        "net_b0": np.concatenate(b0).astype(np.float32),
        "net_w1": np.concatenate(w1).astype(np.float32),
        "net_b1": np.float32(sum(b1)),
    }


def run_networks(arrays: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    hidden = np.maximum(
        standard(rows, arrays["net_mean"], arrays["net_scale"]) @ arrays["net_w0"] + arrays["net_b0"], 0
    )
    return hidden @ arrays["net_w1"] + arrays["net_b1"]


def tree_arrays(model: HistGradientBoostingClassifier) -> dict[str, np.ndarray]:
    """All trees' nodes in one row; a leaf points to itself."""
    parts: dict[str, list[np.ndarray]] = {
        "feature": [],
        "threshold": [],
        "left": [],
        "right": [],
        "value": [],
    }
    roots, depth, offset = [], 0, 0
    for (tree,) in model._predictors:
        nodes = tree.nodes
        here = np.arange(len(nodes)) + offset
        leaf = nodes["is_leaf"].astype(bool)
        parts["feature"].append(np.where(leaf, 0, nodes["feature_idx"]).astype(np.int16))
        parts["threshold"].append(np.where(leaf, 0, nodes["num_threshold"]).astype(np.float32))
        parts["left"].append(np.where(leaf, here, nodes["left"] + offset).astype(np.int32))
        parts["right"].append(np.where(leaf, here, nodes["right"] + offset).astype(np.int32))
        parts["value"].append(np.where(leaf, nodes["value"], 0).astype(np.float32))
        roots.append(offset)
        depth = max(depth, int(nodes["depth"].max()))
        offset += len(nodes)
    return {
        **{f"tree_{name}": np.concatenate(rows) for name, rows in parts.items()},
        "tree_roots": np.array(roots, dtype=np.int32),
        "tree_depth": np.int32(depth),
        "tree_base": np.float32(np.ravel(model._baseline_prediction)[0]),
    }


def thresholds(score: np.ndarray, same: np.ndarray, served: np.ndarray) -> dict[float, float]:
    """The least score by budget, among pairs that no rule refuses.

    Among likely pairs, the share of false hits is that of a logistic curve laid through the labels: the counted share
    crosses a budget where a few labels say so, and a threshold set there does worse on other pairs.
    """
    order = np.flatnonzero(served)[np.argsort(-score[served], kind="stable")]
    false = 1.0 - same[order]
    likely = (score[order] >= LIKELY) & (score[order] < EXACT)
    rows = score[order][likely, None]
    false[likely] = LogisticRegression(C=1e4).fit(rows, 1 - same[order][likely]).predict_proba(rows)[:, 1]
    hits = np.arange(1, len(order) + 1)
    share = np.cumsum(false) / hits
    found = {}
    for budget in BUDGETS:
        good = np.flatnonzero((share <= budget) & (hits >= LEAST))
        if len(good):
            found[budget] = float(score[order][good[-1]])
    return found


def figures(score: np.ndarray, same: np.ndarray, served: np.ndarray, least: float) -> dict[str, float]:
    hit = served & (score >= least)
    hits = int(hit.sum())
    return {
        "hits": hits,
        "true_pairs_hit": round(float((hit & (same == 1)).sum() / same.sum()), 4),
        "false_share": round(float(1 - same[hit].mean()), 4) if hits else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--embeddings", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--scores", type=Path, default=None, help="where to write the scores out of fold")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = load(options.data, options.embeddings)
    same = pairs.same
    texts = list(zip(pairs.asked, pairs.stored, strict=True))
    questions = [(read(a), read(b)) for a, b in texts]
    served = np.array([refusal(a, b) is None for a, b in texts])
    cosine = (pairs.u * pairs.v).sum(1)
    wide = pair(pairs.u, pairs.v)
    fold = folds(pairs)

    def aligned(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        idf = inverse_frequencies([side for index in np.flatnonzero(chosen) for side in questions[index]])
        rows = [features(a, b, float(near), idf) for (a, b), near in zip(questions, cosine, strict=True)]
        known, near = crowded(pairs, chosen)
        return idf, known, np.concatenate([np.array(rows, dtype=np.float32), near], axis=1)

    score = np.zeros(len(pairs))
    for number in range(FOLDS):
        train, test = fold != number, fold == number
        _, _, rows = aligned(train)
        trees = fit_trees(rows[train], same[train])
        both = np.concatenate([wide, rows], axis=1)
        networks = fit_networks(both[train], same[train])
        score[test] = trees.decision_function(rows[test]) + run_networks(networks, both[test])
    exact = np.array([a.tokens == b.tokens for a, b in questions])
    score[exact] = EXACT

    if options.scores is not None:
        np.save(options.scores, score)
    least = thresholds(score, same, served)
    idf, known, rows = aligned(np.ones(len(pairs), bool))
    calibration = LogisticRegression().fit(score[served & ~exact][:, None], same[served & ~exact])
    arrays = {
        "idf": idf.astype(np.float16),
        "known": known,
        **tree_arrays(fit_trees(rows, same)),
        **fit_networks(np.concatenate([wide, rows], axis=1), same),
        "budgets": np.array(list(least), dtype=np.float64),
        "thresholds": np.array(list(least.values()), dtype=np.float64),
        "calibration": np.array([calibration.coef_[0, 0], calibration.intercept_[0]], dtype=np.float32),
    }
    with options.out.open("wb") as file:
        np.savez_compressed(file, **arrays)
    # A threshold chosen on four folds and judged on the fifth shows what choosing it costs.
    nested = {budget: np.zeros(len(pairs), bool) for budget in BUDGETS}
    for number in range(FOLDS):
        train, test = fold != number, fold == number
        for budget, at in thresholds(score[train], same[train], served[train]).items():
            nested[budget] |= test & served & (score >= at)
    report = {
        "pairs": len(pairs),
        "folds": FOLDS,
        "auc": round(float(roc_auc_score(same, score)), 4),
        "true_pairs_past_the_rules": round(float((served & (same == 1)).sum() / same.sum()), 4),
        "budgets": {
            str(b): {"threshold": round(t, 4), **figures(score, same, served, t)} for b, t in least.items()
        },
        "threshold_from_other_folds": {
            str(b): figures(np.where(hit, 1.0, 0.0), same, served, 0.5) for b, hit in nested.items()
        },
        "cosine": {
            str(t): figures(cosine, same, np.ones(len(pairs), bool), t) for t in (0.85, 0.9, 0.95, 0.97, 0.99)
        },
    }
    options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
