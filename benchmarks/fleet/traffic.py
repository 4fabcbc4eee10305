"""Who asks, when, and how much: arrivals with a recorded trace's lengths, tenants by Zipf's law."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.fleet.queues import Places, Times

TRACE = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "azure_conv.csv"
_LENGTHS = np.array(
    [
        [374, 44],
        [396, 109],
        [879, 55],
        [91, 16],
        [381, 173],
        [1313, 434],
        [388, 60],
        [242, 14],
        [209, 152],
        [394, 59],
        [394, 79],
        [1315, 174],
        [2221, 15],
        [389, 84],
        [415, 121],
        [120, 511],
        [369, 14],
        [206, 197],
        [1353, 161],
        [197, 190],
    ],
    dtype=np.int64,
)
"""Of prompts and answers, where no trace is at hand: the first ones of Azure's."""


@dataclass(frozen=True)
class Traffic:
    """In order of arrival."""

    at: Times
    prompt: Places
    answer: Places
    tenant: Places

    def __len__(self) -> int:
        return len(self.at)

    @property
    def mean_prompt(self) -> float:
        return float(self.prompt.mean())

    @property
    def mean_answer(self) -> float:
        return float(self.answer.mean())


def lengths(trace: Path | None) -> npt.NDArray[np.int64]:
    """Tokens of prompts and answers, a row each, of a trace in Azure's form."""
    if trace is None or not trace.is_file():
        return _LENGTHS
    with trace.open(newline="") as file:
        rows = [
            (int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))) for row in csv.DictReader(file)
        ]
    return np.array(rows, dtype=np.int64)


def draw(
    rate: float,
    seconds: float,
    rng: np.random.Generator,
    *,
    shapes: npt.NDArray[np.int64],
    tenants: int = 2000,
    hot: float | None = None,
    exponent: float = 1.1,
) -> Traffic:
    """Poisson arrivals of ``rate`` a second; ``hot``: the share of tenant 0, in place of Zipf's."""
    count = int(rng.poisson(rate * seconds))
    at = np.sort(rng.uniform(0.0, seconds, count))
    chosen = shapes[rng.integers(0, len(shapes), count)]
    weights = np.arange(1, tenants + 1, dtype=np.float64) ** -exponent
    if hot is not None:
        weights[0] = 0.0
        weights *= (1 - hot) / weights.sum()
        weights[0] = hot
    weights /= weights.sum()
    tenant = np.searchsorted(np.cumsum(weights), rng.random(count)).clip(0, tenants - 1)
    return Traffic(at, chosen[:, 0], chosen[:, 1], tenant.astype(np.int64))


def come_together(traffic: Traffic, at: float, seconds: float, within: float) -> Traffic:
    """Whoever asks from ``at`` on for so many ``seconds`` does so ``within`` the next ones: a herd."""
    waits = (traffic.at >= at) & (traffic.at < at + seconds)
    moved = np.where(waits, at + seconds + (traffic.at - at) * within / seconds, traffic.at)
    order = np.argsort(moved, kind="stable")
    return Traffic(moved[order], traffic.prompt[order], traffic.answer[order], traffic.tenant[order])
