"""The report as text, and each answer as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from gateway.lab.evaluate.evaluation import Evaluation

WORST = 10
"""Lost cases that are named."""


def as_text(evaluation: Evaluation, told: Mapping[str, Any]) -> Iterator[str]:
    yield from _table(
        (
            "MODEL",
            "PASSED",
            "RATE",
            "INTERVAL",
            "SCORE",
            "ERRORS",
            "USD",
            "P50 S",
            "P95 S",
            "TTFT P50",
            "TOKENS",
        ),
        [_row(model) for model in told["models"]],
    )
    tasks = [task for task in told["models"][0]["tasks"] if task]
    if tasks:
        yield ""
        yield from _table(
            ("TASK", *(model["model"] for model in told["models"])),
            [
                (task, *("{passed} of {judged}".format(**model["tasks"][task]) for model in told["models"]))
                for task in tasks
            ],
        )
    for comparison in told["comparisons"]:
        yield ""
        yield from _compared(evaluation, told, comparison)
    if told["judge_cost_usd"] is not None:
        yield f"The judge {told['judge']} cost ${told['judge_cost_usd']:.4f}."
    unjudged = sum(model["unjudged"] for model in told["models"])
    if unjudged:
        yield f"! {unjudged} answers count nowhere, as the judge did not reply with what it was asked for."


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = model["pass_rate_interval"]
    seconds, first = model["seconds"] or {}, model["first_token_seconds"] or {}
    return (
        model["model"],
        f"{model['passed']} of {model['judged']}",
        _share(model["pass_rate"]),
        f"{_share(low)} to {_share(high)}",
        _figure(model["score"], "{:.3f}"),
        str(model["errors"]),
        _figure(model["cost_usd"], "{:.4f}"),
        _figure(seconds.get("p50"), "{:.2f}"),
        _figure(seconds.get("p95"), "{:.2f}"),
        _figure(first.get("p50"), "{:.2f}"),
        f"{model['completion_tokens']:.0f}",
    )


def _compared(
    evaluation: Evaluation, told: Mapping[str, Any], comparison: Mapping[str, Any]
) -> Iterator[str]:
    model, low_high = comparison["model"], comparison["difference_interval"]
    yield (
        f"{model} beside {told['baseline']}: {_points(comparison['difference'])} points "
        f"({_points(low_high[0])} to {_points(low_high[1])}) of {comparison['pairs']} cases; "
        f"passed alone {comparison['gained']}, failed alone {comparison['lost']}, p {comparison['p']:.3f}"
    )
    low, high = comparison["score_difference_interval"]
    yield f"  score {comparison['score_difference']:+.3f} ({low:+.3f} to {high:+.3f})"
    if (preferred := comparison["preferred"]) is not None:
        yield "  the judge prefers it in {wins}, the other in {losses}, neither in {ties}; p {p:.3f}".format(
            **preferred
        )
    budget, confidence = _points(told["budget"]).lstrip("+"), f"{told['confidence']:.0%}"
    if comparison["regression"]:
        yield f"  REGRESSION: worse by more than {budget} points, with {confidence} confidence. Failed alone:"
        yield from (f"    {line}" for line in _lost(evaluation, model))
    elif comparison["detectable"] is not None:
        yield (
            f"  no regression beyond {budget} points is shown; so many cases show one of "
            f"{_points(comparison['detectable'] + told['budget']).lstrip('+')} points in four of five evaluations"
        )


def _lost(evaluation: Evaluation, model: str) -> Iterator[str]:
    base = evaluation.results[evaluation.plan.models[0]]
    lost = [
        new
        for old, new in zip(base, evaluation.results[model], strict=True)
        if old.verdict is not None
        and old.verdict.passed
        and new.verdict is not None
        and not new.verdict.passed
    ]
    for result in lost[:WORST]:
        why = " ".join((result.verdict.why if result.verdict is not None else "").split())
        yield f"{result.case.id}: {why[:100]}"
    if len(lost) > WORST:
        yield f"and {len(lost) - WORST} more (--answers FILE has all)"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        first = row[0].ljust(widths[0])
        yield "  ".join(
            [first, *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )


def write_answers(evaluation: Evaluation, file: TextIO) -> None:
    for model, results in evaluation.results.items():
        for result in results:
            verdict, answer = result.verdict, result.answer
            line = {
                "model": model,
                "case": result.case.id,
                "task": result.case.task,
                "passed": verdict.passed if verdict is not None else None,
                "score": verdict.score if verdict is not None else None,
                "why": verdict.why if verdict is not None else "the judge could not be read",
                "text": answer.text,
                "tool_calls": [{"name": name, "arguments": text} for name, text in answer.tool_calls],
                "finish_reason": answer.finish_reason,
                "error": answer.error,
                "request_id": answer.request_id,
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                "cost_usd": answer.cost,
                "first_token_seconds": answer.first_token,
                "seconds": answer.seconds,
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
