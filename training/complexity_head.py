"""Train the head that tells from a question's embedding whether a small model will fail where a large one does not.

    python -m training.complexity_head [--data FILE] [--cache FILE]

Writes gateway/sidecar/heads/complexity.npz, and beside it the quantiles of the blended score with what cross-validation
found. The words' part is training/complexity.py's; both are fitted fold by fold. Embedding the questions takes minutes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from gateway.cascade.scorers import FIGURES, HEAD, SHARE
from gateway.sidecar.models.embedder import BuiltInEmbedder
from training.complexity import DATA, Curve, Rows, cross_validated, quantiles

POOL = "mean6"
PENALTY = 1000.0
"""L2, on the sum of the losses."""
BATCH = 64

Array = np.ndarray


def embedded(texts: list[str]) -> Array:
    embedder = BuiltInEmbedder()
    row = embedder.pools.index(POOL)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = np.zeros((len(texts), 384), np.float32)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        beginnings = [embedder.beginning(texts[i]) for i in chosen]
        found[chosen] = [encoding[row] for encoding in embedder.encode(beginnings)]
    return found


def fit(x: Array, y: Array) -> dict[str, Array]:
    """Logistic regression by L-BFGS, in a head's arrays."""
    mean, scale = x.mean(0), x.std(0) + 1e-6
    inputs, labels = torch.from_numpy((x - mean) / scale), torch.from_numpy(y.astype(np.float32))
    weights, bias = torch.zeros(x.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
    descent = torch.optim.LBFGS([weights, bias], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        descent.zero_grad()
        odds = inputs @ weights + bias
        misfit = torch.nn.functional.binary_cross_entropy_with_logits(odds, labels, reduction="sum")
        total = misfit + PENALTY / 2 * weights.square().sum()
        total.backward()
        return total

    descent.step(loss)
    return {
        "mean": mean.astype(np.float32),
        "scale": scale.astype(np.float32),
        "w0": weights.detach().numpy()[:, None],
        "b0": bias.detach().numpy(),
    }


def log_odds(head: dict[str, Array], x: Array) -> Array:
    return ((x - head["mean"]) / head["scale"]) @ head["w0"][:, 0] + head["b0"][0]


def out_of_fold(x: Array, rows: Rows, folds: Array) -> Array:
    odds = np.zeros(len(folds))
    for fold in np.unique(folds):
        odds[folds == fold] = log_odds(fit(x[folds != fold], rows.lost[folds != fold]), x[folds == fold])
    return odds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--cache", type=Path, help="where embeddings are kept between runs, as .npy")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows.read(given.data)
    if given.cache and given.cache.exists():
        x = np.load(given.cache)
    else:
        x = embedded(rows.texts)
        if given.cache:
            np.save(given.cache, x)
    figures: dict[str, dict[str, float]] = {}
    blended = np.zeros(len(x))
    for name, folds in (("5 folds", rows.folds(5)), ("tasks left out", rows.task_folds(10))):
        words, meaning = cross_validated(rows, folds), out_of_fold(x, rows, folds)
        both = SHARE * meaning + (1 - SHARE) * words
        if name == "5 folds":
            blended = both
        for what, odds in (("words", words), ("meaning", meaning), ("both", both)):
            curve = Curve.of(odds, rows.small, rows.large)
            kept, share = curve.at(0.4)[0], curve.share_at(0.9)[0]
            figures[f"{what}, {name}"] = {
                "kept_at_40_percent_small": round(kept, 4),
                "share_at_90_percent_kept": round(share, 3),
            }
            print(f"{what}, {name}: {kept:.1%} kept at 40 % small; 90 % kept up to {share:.0%}")
    head = fit(x, rows.lost)
    half = {name: array.astype(np.float16) for name, array in head.items()}
    np.savez(FIGURES.with_name(f"{HEAD}.npz"), pools=[POOL], labels=["lost"], **half)
    FIGURES.write_text(
        json.dumps({"cross-validated": figures, "quantiles": quantiles(blended)}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
