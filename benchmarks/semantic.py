"""How far can the semantic cache be trusted? False hits, true paraphrases served, near-misses, and time.

    python -m benchmarks.semantic [--data DIR] [--json FILE] [--quick]   # minutes; --quick leaves out the times

Each pair of ``question_pairs.jsonl`` is one look-up of its second question in a cache that holds the first: a hit when
the verifier serves it, and false when the labels say that the two differ. The verifier is trained on that file, so its
figures on it flatter; those that count are out of fold, from the training script, and stand beside them. On a folder
with other pairs the second column is the test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.sidecar.models.embedder import Embedder, load
from gateway.sidecar.semantic.index import SemanticIndex
from gateway.sidecar.semantic.verifier import SHIPPED, Verifier
from tests.gateway.caching.near_misses import NEAR_MISSES, PARAPHRASES

DATA = Path(__file__).parents[2] / "shared" / "data"
BUDGETS = (0.01, 0.02, 0.05, 0.1)
COSINES = (0.85, 0.9, 0.95, 0.97, 0.99)
SIZES = (1_000, 50_000)
LOOK_UPS = 200


def embed(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """Sentence embeddings in order, in batches of texts of like length."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    out = np.empty((len(texts), 384), dtype=np.float32)
    for start in range(0, len(order), 32):
        chosen = order[start : start + 32]
        for index, encoding in zip(chosen, embedder.encode([texts[i] for i in chosen]), strict=True):
            out[index] = np.frombuffer(embedder.sentence(encoding), dtype="<f4")
    return out


def share(hits: np.ndarray, same: np.ndarray) -> dict[str, float]:
    count = int(hits.sum())
    return {
        "hits": count,
        "true_pairs_hit": float((hits & same).sum() / max(1, same.sum())),
        "false_share": float((hits & ~same).sum() / max(1, count)),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """Pairs of questions, ``{"a", "b", "same"}`` a line."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def on_pairs(verifier: Verifier, embedder: Embedder, path: Path) -> dict[str, Any]:
    rows = read(path)
    same = np.array([bool(int(row["same"])) for row in rows])
    vectors = embed(embedder, [row["a"] for row in rows] + [row["b"] for row in rows])
    u, v = vectors[: len(rows)], vectors[len(rows) :]
    cosine = (u * v).sum(1)
    verdicts = {
        budget: np.array(
            [
                verifier.judge(row["b"], row["a"], v[at], u[at], threshold=verifier.threshold(budget)).reason
                is None
                for at, row in enumerate(rows)
            ]
        )
        for budget in BUDGETS
    }
    return {
        "pairs": len(rows),
        "cosine": {str(least): share(cosine >= least, same) for least in COSINES},
        "verifier": {str(budget): share(hits, same) for budget, hits in verdicts.items()},
    }


def on_near_misses(verifier: Verifier, embedder: Embedder, budget: float) -> dict[str, tuple[int, int]]:
    """Served, and of how many, by kind."""
    threshold = verifier.threshold(budget)
    found = {}
    for kind, pairs in [*NEAR_MISSES.items(), ("paraphrases", PARAPHRASES)]:
        vectors = embed(embedder, [text for pair in pairs for text in pair])
        served = sum(
            verifier.judge(b, a, vectors[2 * at + 1], vectors[2 * at], threshold=threshold).reason is None
            for at, (a, b) in enumerate(pairs)
        )
        found[kind] = (served, len(pairs))
    return found


async def on_time(verifier: Verifier, embedder: Embedder, size: int) -> dict[str, float]:
    """Milliseconds of a hit, embedding included, in a partition of ``size`` entries."""
    random = np.random.default_rng(0)
    questions = [a for a, _ in PARAPHRASES]
    known = dict(zip(questions, embed(embedder, questions), strict=True))
    filler = random.normal(size=(size, 384)).astype(np.float32)
    filler /= np.linalg.norm(filler, axis=1, keepdims=True)
    known |= {f"Which part has number {number}?": row for number, row in enumerate(filler)}

    async def stored(texts: Sequence[str]) -> list[bytes]:
        return [known[text].tobytes() for text in texts]

    async def embedded(texts: Sequence[str]) -> list[bytes]:
        encodings = await asyncio.to_thread(embedder.encode, texts)
        return [embedder.sentence(encoding) for encoding in encodings]

    index = SemanticIndex(stored, None, 2**30, 2 * size, verifier=verifier)
    for question in known:
        await index.remember("p", question, b"x" * 500, key=question, ttl=3600)
    index._embed = embedded
    took = []
    for number in range(LOOK_UPS):
        start = time.perf_counter()
        look = await index.look_up("p", questions[number % len(questions)].rstrip("?") + " ?", budget=0.05)
        took.append(1000 * (time.perf_counter() - start))
        if look.hit is None:
            raise RuntimeError(f"no hit: {look.reason}")
    await index.aclose()
    return {"p50": float(np.percentile(took, 50)), "p99": float(np.percentile(took, 99))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="leave out the times")
    options = parser.parse_args()
    verifier, embedder = Verifier.load(), load("builtin")
    trained = json.loads(SHIPPED.with_suffix(".json").read_text())
    report: dict[str, Any] = {"out_of_fold": trained}
    path = options.data / "question_pairs.jsonl"
    if path.exists():
        report["pairs"] = on_pairs(verifier, embedder, path)
        print(f"{'':24}{'out of fold':>28}{path.parent.name + '/' + path.name:>36}")
        print(f"{'':24}{'true pairs hit':>16}{'false hits':>12}{'true pairs hit':>24}{'false hits':>12}")
        for least, here in report["pairs"]["cosine"].items():
            print(f"cosine >= {least:14}{'':28}{here['true_pairs_hit']:24.1%}{here['false_share']:12.1%}")
        for budget, here in report["pairs"]["verifier"].items():
            fold = trained["budgets"].get(budget)
            left = (
                f"{fold['true_pairs_hit']:16.1%}{fold['false_share']:12.1%}"
                if fold
                else f"{'unreachable':>28}"
            )
            label = f"budget {float(budget):.0%}"
            print(f"{label:24}{left}{here['true_pairs_hit']:24.1%}{here['false_share']:12.1%}")
    report["near_misses"] = on_near_misses(verifier, embedder, 0.05)
    for kind, (served, count) in report["near_misses"].items():
        print(f"served of {kind:14}{served:5} of {count}")
    if not options.quick:
        report["milliseconds"] = {str(size): asyncio.run(on_time(verifier, embedder, size)) for size in SIZES}
        for size, took in report["milliseconds"].items():
            print(f"hit among {size:>6} entries: p50 {took['p50']:.1f} ms, p99 {took['p99']:.1f} ms")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
