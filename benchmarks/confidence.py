"""What is escalating by confidence worth? The mean log-probability of a small model's answer, as a cascade's check.

    python -m benchmarks.confidence [--questions 3000] [--json FILE]     # a minute on one core

The small model is the bundled engine's draft, the large one its demo model; the questions are held out of their
training, and an answer is right if it is to the letter. Both answer greedily, and ``mean_logprob`` is taken by the
gateway's own code. The threshold is chosen on one half of the questions and judged on the other, beside drawing lots.

*Cost* counts a model's parameters for each question that it answers, as shares of the large model alone: a cascade pays
for the small model always, and for the large one wherever it escalates.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.core.logprobs import TokenLogprobs
from engine.core.sampling_params import SamplingParams
from engine.demo import corpus, tokens
from engine.offline import OfflineEngine
from engine.weights.source import DEMO, DEMO_DRAFT, locate
from gateway.cascade.confidence import assess
from gateway.policy.schema import Escalate
from gateway.types import ChatRequest, Chunk

KEPT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the questions that the small model's answer is kept for."""
QUALITIES = (0.95, 0.98, 1.0)
LONGEST = 160
AT_ONCE = 500
"""Questions that wait for the engine together."""
FEWEST = 20
"""Right and wrong answers of a kind below which its AUC says nothing."""


@dataclass
class Answers:
    """Of one model to all questions."""

    right: np.ndarray
    mean: np.ndarray
    """Mean log-probability of the answer's tokens, as a receipt has it."""
    least: np.ndarray
    total: np.ndarray
    parameters: int


def answers(model: str, exam: list[corpus.Conversation]) -> Answers:
    folder = locate(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoder = tokens.Encoder(tokenizer)
    end = encoder.ids[tokens.END]
    params = SamplingParams(LONGEST, temperature=0, stop_token_ids=frozenset((end,)), logprobs=0)
    engine = OfflineEngine(EngineConfig(folder, dtype="float32", threads=1, device="cpu"))
    found = [
        answer
        for start in range(0, len(exam), AT_ONCE)
        for answer in engine.generate(
            [(encoder.prompt(one), params) for one in exam[start : start + AT_ONCE]]
        )[1]
    ]
    # The API tells nothing of the end mark.
    shown = [[token for token in one.logprobs if token.token != end] or one.logprobs for one in found]
    texts = [tokenizer.decode([token for token in one.tokens if token != end]) for one in found]
    return Answers(
        np.array([text == one.turns[-1][1] for text, one in zip(texts, exam, strict=True)]),
        np.array([mean_logprob(one) for one in shown]),
        np.array([min(token.logprob for token in one) for one in shown]),
        np.array([math.fsum(token.logprob for token in one) for one in shown]),
        sum(weight.numel() for weight in load_file(folder / "model.safetensors").values()),
    )


def mean_logprob(logprobs: list[TokenLogprobs]) -> float:
    """By the gateway, of an answer as OpenAI's API has it."""
    content = [{"token": "", "logprob": min(token.logprob, 0.0)} for token in logprobs]
    chunk = Chunk(delta={"content": "-"}, logprobs={"content": content}, finish_reason="stop")
    mean = assess([chunk], ChatRequest(model="", messages=()), Escalate()).mean_logprob
    if mean is None:
        raise ValueError("an answer without log-probabilities")
    return mean


def mixed(small: np.ndarray, large: np.ndarray, confidence: np.ndarray, kept: float) -> float:
    """The share that is right where the ``kept`` share with the highest confidence is the small model's."""
    order = np.argsort(-confidence, kind="stable")
    count = round(kept * len(order))
    return float((small[order[:count]].sum() + large[order[count:]].sum()) / len(order))


def threshold_for(quality: float, small: np.ndarray, large: np.ndarray, confidence: np.ndarray) -> float:
    """The lowest threshold with which the mix is right on at least ``quality`` of what the large model alone is."""
    order = np.argsort(-confidence, kind="stable")
    gained = np.cumsum(small[order].astype(int) - large[order])
    enough = np.flatnonzero(large.sum() + gained >= quality * large.sum())
    return float(confidence[order[enough[-1]]]) if len(enough) else 0.0


def report(exam: list[corpus.Conversation], small: Answers, large: Answers) -> dict[str, object]:
    ratio = small.parameters / large.parameters
    first = np.arange(len(exam)) % 2 == 0
    print(
        f"{len(exam)} questions; right: small {small.right.mean():.1%}, large {large.right.mean():.1%}; ",
        end="",
    )
    print(f"the small model has {ratio:.0%} of the large one's parameters\n")
    print("| | small | large |\n|---|---|---|")
    for name in ("mean", "least", "total"):
        cells = [f"{roc_auc_score(one.right, getattr(one, name)):.3f}" for one in (small, large)]
        print(f"| AUC of the {name} log-probability | {' | '.join(cells)} |")
    kinds = np.array([one.kind for one in exam])
    print("\n| kind | questions | right, small | right, large | AUC, small |\n|---|---|---|---|---|")
    for kind in sorted(set(kinds)):
        mask = kinds == kind
        right = small.right[mask]
        enough = min(right.sum(), (~right).sum()) >= FEWEST
        auc = f"{roc_auc_score(right, small.mean[mask]):.2f}" if enough else "–"
        print(f"| {kind} | {mask.sum()} | {right.mean():.0%} | {large.right[mask].mean():.0%} | {auc} |")
    lots = [kept * small.right.mean() + (1 - kept) * large.right.mean() for kept in KEPT]
    rows = {
        "by confidence": [mixed(small.right, large.right, small.mean, kept) for kept in KEPT],
        "random": lots,
        "always large": [large.right.mean()] * len(KEPT),
        "cost, both models asked where escalated": [ratio + 1 - kept for kept in KEPT],
        "cost of random, one model asked": [kept * ratio + 1 - kept for kept in KEPT],
    }
    print("\n| kept of the small model | " + " | ".join(f"{kept:.0%}" for kept in KEPT) + " |")
    print("|---|" + "---|" * len(KEPT))
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{value:.1%}" for value in row) + " |")
    print("\n| quality aimed at | `mean_logprob_below` | kept | quality | random at that cost | cost |")
    print("|---|---|---|---|---|---|")
    other = ~first
    for quality in QUALITIES:
        bar = threshold_for(quality, small.right[first], large.right[first], small.mean[first])
        kept = small.mean[other] >= bar
        best = large.right[other].mean()
        found = np.where(kept, small.right[other], large.right[other]).mean() / best
        cost = ratio + 1 - kept.mean()
        # Lots cost 1 - kept * (1 - ratio): what they keep for the same money.
        share = np.clip((1 - cost) / (1 - ratio), 0, 1)
        drawn = (share * small.right[other].mean() + (1 - share) * best) / best
        print(f"| {quality:.0%} | {bar:.3f} | {kept.mean():.0%} | {found:.1%} | {drawn:.1%} | {cost:.0%} |")
    return {"kept": KEPT, **{name: [float(value) for value in row] for name, row in rows.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    exam = corpus.exam(options.seed, options.questions)
    curves = report(exam, answers(DEMO_DRAFT, exam), answers(DEMO, exam))
    if options.json:
        options.json.write_text(json.dumps(curves, indent=1) + "\n")


if __name__ == "__main__":
    main()
