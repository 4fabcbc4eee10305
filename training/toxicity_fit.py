"""How the toxicity guard's two checks are fitted: a linear model of wording, and a head on the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import minimize

from gateway.guards.evaluation import NGRAM_SMOOTHING as SMOOTHING
from gateway.guards.evaluation import TOXICITY_CATEGORIES as CATEGORIES
from gateway.guards.evaluation import Ngrams

POOLS = ("mean1", "mean3", "mean4", "mean5", "mean6", "max6")
NETS = 2
HIDDEN, EPOCHS, DROPOUT, DECAY, RATE, BATCH = 64, 4, 0.5, 0.05, 3e-3, 512
C, ITERATIONS, KEPT, SCALE = 20, 160, 60_000, 100
"""The inverse strength of regularisation; steps of the fit; features that are kept; weights are integers of 1/SCALE."""
RARE, RARITY = 5.0, 0.75
"""The logarithm at which the rarity of a feature makes no difference, and how much it makes."""

Head = Mapping[str, np.ndarray]


def fit_fast(
    counts: sparse.csr_matrix, names: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> dict[str, Any]:
    """The fast check as ``Ngrams`` has it, and as it is written. ``counts`` has a row a text, a column a feature."""
    sizes = np.asarray(counts.sum(1)).ravel()
    often = np.asarray((counts > 0).sum(0)).ravel()
    names, counts, seen = names[often >= 2], counts[:, often >= 2], np.sqrt(often[often >= 2])
    # What is rare is regularised less: that is as good as more data in languages of which there is little.
    rare = (np.log(len(sizes) / seen**2) / RARE) ** RARITY
    x = (sparse.diags(1 / np.sqrt(sizes + SMOOTHING)) @ counts @ sparse.diags(rare)).tocsr()
    found, bias = _logistic(x, targets, weight)
    found *= rare
    least = np.sort((np.abs(found) * seen).max(0))[-KEPT:][0]
    weights = {}
    for column in np.flatnonzero((np.abs(found) * seen).max(0) >= least):
        kept = [
            (i, round(SCALE * float(w)))
            for i, w in enumerate(found[:, column])
            if abs(w) * seen[column] >= least / 3
        ]
        weights[str(names[column])] = [value for pair in kept for value in pair]
    return {
        "labels": CATEGORIES,
        "bias": [round(float(one), 3) for one in bias],
        "scale": SCALE,
        "weights": weights,
    }


def _logistic(x: sparse.csr_matrix, targets: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Regularised logistic regressions of all categories at once: weights ``[categories, columns]``, and biases.

    Targets may lie between 0 and 1; those that are not known count for nothing.
    """
    known = ~np.isnan(targets) * weight[:, None] * C
    wanted = np.nan_to_num(targets)
    turned = x.T.tocsr()
    columns, labels = x.shape[1], targets.shape[1]

    def cost(flat: np.ndarray) -> tuple[float, np.ndarray]:
        every = flat.reshape(columns + 1, labels)
        out = x @ every[:-1] + every[-1]
        loss = (known * (np.logaddexp(0, out) - wanted * out)).sum()
        residual = known * (1 / (1 + np.exp(-np.clip(out, -60, 60))) - wanted)
        slope = np.vstack([turned @ residual + every[:-1], residual.sum(0)])
        return float(loss + 0.5 * (every[:-1] ** 2).sum()), slope.ravel()

    start = np.zeros((columns + 1) * labels)
    best = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS, "maxcor": 6})
    every = best.x.reshape(columns + 1, labels)
    return every[:-1].T, every[-1]


def ngrams(fast: Mapping[str, Any]) -> Ngrams:
    return Ngrams(fast["labels"], fast["bias"], fast["weights"], scale=fast["scale"])


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


def head_log_odds(head: Head, x: np.ndarray) -> np.ndarray:
    value = {name: head[name].astype(np.float32) for name in ("mean", "scale", "w0", "b0", "w1", "b1")}
    hidden = np.maximum((x - value["mean"]) / value["scale"] @ value["w0"] + value["b0"], 0)
    return hidden @ value["w1"] + value["b1"]
