"""What was found, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.real_models.judging import Text
from benchmarks.real_models.strategies import STRATEGIES, Outcomes, gain, interval, within
from benchmarks.real_models.through_gateway import Served

BUDGETS = (0.5, 0.6, 0.8, 0.9)


def cascade(name: str, outcomes: Outcomes) -> str:
    """By kind of task, then by strategy and budget."""
    small, large = outcomes.small, outcomes.large
    unit = outcomes.large_cost.mean()
    lines = [
        f"### {name}: {len(small)} prompts",
        "",
        (
            f"Right: the small model {small.mean():.1%}, the large one {large.mean():.1%}; one of the two "
            f"{(small | large).mean():.1%}; only the small one {(small & ~large).mean():.1%}. The small one alone "
            f"costs {outcomes.small_cost.mean() / unit:.0%} of the large one alone. The mean log-probability tells its "
            f"right answers from wrong ones with an AUC of {_auc(outcomes):.2f}."
        ),
        "",
        "| kind | prompts | small | large | AUC |",
        "|---|--:|--:|--:|--:|",
    ]
    kinds = np.array([one.kind for one in outcomes.prompts])
    for kind in sorted(set(kinds)):
        mask = kinds == kind
        lines.append(
            f"| {kind} | {mask.sum()} | {small[mask].mean():.0%} | {large[mask].mean():.0%} | "
            f"{_cell(_auc(outcomes, mask))} |"
        )
    lines += [
        "",
        "Right at what was spent, and the gain over lots for the same money (95 % of resamples):",
        "",
        "| within a cost of | " + " | ".join(f"{budget:.0%}" for budget in BUDGETS) + " |",
        "|---|" + "--:|" * len(BUDGETS),
    ]
    for title, strategy in STRATEGIES.items():
        points = [within(budget, strategy, outcomes) for budget in BUDGETS]
        cells = []
        for point in points:
            low, high = interval(point, outcomes)
            cells.append(
                f"{point.quality:.1%} at {point.spent:.0%}, {gain(point, outcomes):+.1%} ({low:+.1%} to {high:+.1%})"
            )
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _auc(outcomes: Outcomes, mask: np.ndarray | None = None) -> float:
    """Not a number where all answers are right, or all are wrong."""
    right, confidence = outcomes.small, outcomes.confidence
    if mask is not None:
        right, confidence = right[mask], confidence[mask]
    return float(roc_auc_score(right, confidence)) if 0 < right.sum() < len(right) else float("nan")


def _cell(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def served(
    bar: float, found: Sequence[Served], marks: Sequence[bool], outcomes: Outcomes, held: np.ndarray
) -> str:
    """What a running gateway did, beside what the same decision gives on the answers that are kept."""
    kept = np.array([one.answered == "small" for one in found])
    foretold = outcomes.confidence[held] >= bar
    right = np.where(foretold, outcomes.small[held], outcomes.large[held])
    near = [
        abs(one.mean_logprob - known)
        for one, known in zip(found, outcomes.confidence[held], strict=True)
        if one.mean_logprob is not None
    ]
    return "\n".join(
        [
            f"Through a gateway, `mean_logprob_below: {bar:.3f}`, {len(found)} prompts of coding:",
            "",
            "| | kept of the small model | right |",
            "|---|--:|--:|",
            f"| as served | {kept.sum()} | {sum(marks)} |",
            f"| foretold | {foretold.sum()} | {right.sum()} |",
            "",
            (
                f"The same model answered {(kept == foretold).sum()} of {len(found)}; the mean log-probability "
                f"differed by {np.median(near):.4f} in the median, {max(near):.4f} at most."
            ),
        ]
    )


def verdicts(texts: Sequence[Text], found: Sequence[bool | None]) -> str:
    """By source, and by guard: what share of bad and of harmless texts it calls harmful."""
    lines = [
        "| guard | texts | bad | found | harmless | called harmful | no verdict |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    groups: dict[tuple[str, str], list[tuple[bool, bool | None]]] = {}
    for one, verdict in zip(texts, found, strict=True):
        for source in (one.source, "all"):
            groups.setdefault((one.guard, source), []).append((one.bad, verdict))
    for (guard, source), pairs in sorted(groups.items()):
        bad = [verdict for is_bad, verdict in pairs if is_bad]
        good = [verdict for is_bad, verdict in pairs if not is_bad]
        lines.append(
            f"| {guard} | {source} | {len(bad)} | {_share(bad)} | {len(good)} | {_share(good)} | "
            f"{sum(verdict is None for _, verdict in pairs)} |"
        )
    for guard in sorted({one.guard for one in texts}):
        decided = [(bad, verdict) for bad, verdict in groups[guard, "all"] if verdict is not None]
        agree = sum(bad == verdict for bad, verdict in decided) / max(len(decided), 1)
        lines.append(
            f"\n{guard}: of {len(decided)} verdicts {agree:.0%} are the label; kappa {kappa(decided):.2f}"
        )
    return "\n".join(lines)


def _share(verdicts: Sequence[bool | None]) -> str:
    """Of those that were called harmful."""
    return f"{sum(map(bool, verdicts)) / len(verdicts):.0%}" if verdicts else "–"


def kappa(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Cohen's: agreement beyond what chance gives, 1 for all."""
    if not pairs:
        return float("nan")
    label, verdict = (np.array(each, bool) for each in zip(*pairs, strict=True))
    by_chance = label.mean() * verdict.mean() + (1 - label.mean()) * (1 - verdict.mean())
    return float(((label == verdict).mean() - by_chance) / (1 - by_chance)) if by_chance < 1 else 0.0
