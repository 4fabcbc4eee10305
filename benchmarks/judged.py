"""What share of the semantic cache's hits is false once the labels are checked by hand.

    python -m training.verifier --out /tmp/verifier.npz --scores /tmp/scores.npy     # three minutes on one core
    python -m benchmarks.judged --scores /tmp/scores.npy --report /tmp/verifier.json [--data DIR]

One reader, who saw neither label nor score, judged pairs that the verifier serves out of fold: all that a budget of 10%
serves although their labels say that they differ, and samples of the others. Does an answer to the one question serve
the other? ``yes``, ``no``, or ``partly`` where it is right and about what was asked, but lacks a part, or is wider or
narrower. ``judged_pairs.jsonl`` has the verdicts by line of ``question_pairs.jsonl``, whose texts are not repeated.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from gateway.sidecar.semantic.rules import refusal
from gateway.sidecar.semantic.verifier import SHIPPED

DATA = Path(__file__).parents[2] / "shared" / "data"
JUDGED = Path(__file__).with_name("judged_pairs.jsonl")
DRAWS = 20_000


@dataclass
class Judged:
    """All pairs, in the order of the data: what their labels say, and where they were judged."""

    same: np.ndarray
    served: np.ndarray
    """Whether no rule refuses the pair."""
    verdicts: np.ndarray
    """``yes``, ``partly``, ``no``, or empty."""

    @classmethod
    def read(cls, data: Path, judged: Path = JUDGED) -> Judged:
        """Raises ``ValueError`` where the data are others than those that were judged."""
        with (data / "question_pairs.jsonl").open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        verdicts = np.full(len(rows), "", dtype="<U6")
        with judged.open(encoding="utf-8") as lines:
            for line in lines:
                one = json.loads(line)
                at = one["line"] - 1
                if at >= len(rows) or crc32(f"{rows[at]['a']}\n{rows[at]['b']}".encode()) != one["crc32"]:
                    raise ValueError(
                        f"line {one['line']} of question_pairs.jsonl is not the pair that was judged"
                    )
                verdicts[at] = one["serves"]
        same = np.array([bool(int(row["same"])) for row in rows])
        return cls(same, np.array([refusal(row["a"], row["b"]) is None for row in rows]), verdicts)


def false_share(hits: np.ndarray, judged: Judged, bad: tuple[str, ...]) -> tuple[float, float, float]:
    """The share of ``hits`` whose verdict is one of ``bad``, and its 95 % interval.

    What was judged stands for all hits of the same label: two binomials, each with Jeffreys' prior, added up by weight.
    """
    random = np.random.default_rng(0)
    share, drawn = 0.0, np.zeros(DRAWS)
    for label in (False, True):
        of_label = hits & (judged.same == label)
        verdicts = judged.verdicts[of_label]
        verdicts = verdicts[verdicts != ""]
        wrong = int(np.isin(verdicts, bad).sum())
        weight = of_label.sum() / hits.sum()
        share += weight * wrong / max(len(verdicts), 1)
        drawn += weight * random.beta(wrong + 0.5, len(verdicts) - wrong + 0.5, DRAWS)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(share), float(low), float(high)


def table(scores: np.ndarray, judged: Judged, thresholds: dict[str, float]) -> str:
    """In Markdown, a line for each budget."""
    lines = [
        "| budget | served | true paraphrases served | false by label | judged | wrong | wrong or partly |",
        "|---|---|---|---|---|---|---|",
    ]
    for budget, least in thresholds.items():
        hits = judged.served & (scores >= least)
        cells = [
            "{:.1%} ({:.1%} to {:.1%})".format(*false_share(hits, judged, bad))
            for bad in (("no",), ("no", "partly"))
        ]
        lines.append(
            f"| {float(budget):.1%} | {hits.sum()} | {(hits & judged.same).sum() / judged.same.sum():.1%} | "
            f"{(hits & ~judged.same).sum() / hits.sum():.1%} | {(hits & (judged.verdicts != '')).sum()} | "
            f"{' | '.join(cells)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--scores", type=Path, required=True, help="as training.verifier --scores writes them"
    )
    parser.add_argument(
        "--report", type=Path, default=SHIPPED.with_suffix(".json"), help="the same training's"
    )
    options = parser.parse_args()
    trained = json.loads(options.report.read_text())["budgets"]
    thresholds = {budget: one["threshold"] for budget, one in trained.items() if float(budget) <= 0.1}
    judged = Judged.read(options.data)
    print(table(np.load(options.scores), judged, thresholds))
    counts = {
        label: [
            int(((judged.same == label) & (judged.verdicts == verdict)).sum())
            for verdict in ("yes", "partly", "no")
        ]
        for label in (False, True)
    }
    for label, (yes, partly, no) in counts.items():
        print(f"labelled {'same' if label else 'different'}: {yes} serve, {partly} partly, {no} do not")


if __name__ == "__main__":
    main()
