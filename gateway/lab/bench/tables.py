"""The report as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from gateway.lab.bench.knee import KneeSearch
from gateway.lab.bench.sample import Sample
from gateway.lab.bench.session import Report
from gateway.lab.bench.summary import Result
from gateway.text.csv_cell import csv_cell
from gateway.version import version

LATENCIES = ("ttft", "tpot", "itl", "e2e")
HEADINGS = (
    *("SERVER", "LOAD", "OK", "FAILED", "REQ/S", "OUT TOK/S", "IN SLO", "GOOD/S"),
    *(f"{name.upper()} {percent}" for name in LATENCIES for percent in ("P50", "P99")),
    "CLIENT P99",
)
LATE = (
    "! The client itself was late, by CLIENT P99 or more in 1 % of cases, which counts as the server's: ask at a lower "
    "rate, or from a machine that does nothing else."
)
BUSY = "! The client kept a processor busy, and may be what was measured: ask from more machines."
SAMPLE_COLUMNS = (
    *("server", "load", "round", "conversation", "turn", "warm_up", "outcome", "status", "code", "finish"),
    *("intended_s", "lag_ms", "ttft_ms", "tpot_ms", "longest_gap_ms", "e2e_ms"),
    *("prompt_tokens", "output_tokens", "chunks", "in_slo"),
)


def as_json(report: Report, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options``: as the command was given them."""
    return {
        "tollgate": version(),
        "began": datetime.fromtimestamp(report.began, UTC).isoformat(timespec="seconds"),
        "options": dict(options),
        "interrupted": report.interrupted,
        "tokens_per_word": report.scale.per_word,
        "results": [result.summary() for result in report.results],
        "knees": [told_knee(name, search) for name, search in report.knees.items()],
    }


def told_knee(server: str, search: KneeSearch) -> dict[str, Any]:
    return {
        "server": server,
        "requests_per_second": search.held or None,
        "failed_at": search.failed,
        "share": search.share,
        "repeats": search.repeats,
        "tolerance": search.tolerance,
        "trials": [{"rate": rate, "shares": shares} for rate, shares in sorted(search.trials.items())],
    }


def as_text(report: Report, summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines: a table, what failed, the knees, and what the client has to say about itself."""
    rows = [HEADINGS, *map(cells, summaries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
    yield "Latencies in ms" + (
        f"; SLO: {report.slo}" if report.slo.bounds else "; IN SLO: those that succeeded"
    )
    for one in summaries:
        yield from (f"{one['server']}, {one['load']}: {note}" for note in notes(one, rounds=not report.knees))
    for name, search in report.knees.items():
        yield f"{name}: {told_search(search)}"
    yield from warnings(summaries)
    if report.interrupted:
        yield "Interrupted: this is what there was until then."


def warnings(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the client has to say about itself."""
    if any(one["client"]["is_late"] for one in summaries):
        yield LATE
    if any(one["client"]["is_busy"] for one in summaries):
        yield BUSY


def notes(one: Mapping[str, Any], *, rounds: bool) -> Iterator[str]:
    """What the table has no column for; ``rounds``: how far these agree."""
    yield from map(_told_error, one["errors"])
    if not one["tokens"]["counted_by_server"]:
        yield "the server counts no tokens, so pieces are counted for them"
    medians = [round_["e2e_ms"]["p50"] for round_ in one["by_round"] if round_["e2e_ms"]]
    if rounds and len(medians) > 1:
        yield f"E2E P50 between {min(medians):,.1f} and {max(medians):,.1f} by round"


def _told_error(error: Mapping[str, Any]) -> str:
    named = " ".join(str(error[key]) for key in ("kind", "status", "code") if error[key])
    example = f": {error['example']}" if error["example"] else ""
    return f"{error['count']} × {named}{example}"


def told_search(search: KneeSearch) -> str:
    most = "its trial" if search.repeats == 1 else "most of its trials"
    goal = f"{100 * search.share:g} % of requests within the SLO in {most}"
    if not search.held:
        least = min(search.trials, default=search.first)
        return f"no knee: not even {least:.3g} requests/s kept {goal}"
    if not search.is_bounded:
        return f"at least {search.held:.3g} requests/s, with {goal}: the highest rate that was tried"
    return f"knee at {search.held:.3g} requests/s, with {goal}; not at {search.failed:.3g}"


def cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    per_second, client = one["per_second"], one["client"]
    latencies = [_figure(one[f"{name}_ms"], percent) for name in LATENCIES for percent in ("p50", "p99")]
    return (
        str(one["server"]),
        str(one["load"]),
        f"{one['requests']['ok']:,}",
        f"{one['requests']['failed']:,}",
        f"{per_second['requests']:,.2f}",
        f"{per_second['output_tokens']:,.1f}",
        f"{100 * one['slo']['share']:.1f} %",
        f"{per_second['good_requests']:,.2f}",
        *latencies,
        f"{client['late_p99_ms']:,.1f}{' !' if client['is_late'] or client['is_busy'] else ''}",
    )


def _figure(described: Mapping[str, float] | None, name: str) -> str:
    return "-" if described is None else f"{described[name]:,.1f}"


def as_csv(summaries: Sequence[Mapping[str, Any]]) -> str:
    """One line for each server and load."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    shown = ("mean", "p50", "p90", "p95", "p99", "max")
    writer.writerow(
        [
            *("server", "model", "load", "seconds", "ok", "failed", "requests_per_s", "output_tokens_per_s"),
            *("prompt_tokens_per_s", "slo_share", "good_requests_per_s"),
            *(f"{name}_{figure}_ms" for name in LATENCIES for figure in shown),
            *("client_late_p99_ms", "client_is_late", "client_is_busy"),
        ]
    )
    for one in summaries:
        per_second, client = one["per_second"], one["client"]
        writer.writerow(
            [
                *(csv_cell(one[name]) for name in ("server", "model", "load")),
                *(f"{one['seconds']:.3f}", one["requests"]["ok"], one["requests"]["failed"]),
                *(f"{per_second[name]:.4f}" for name in ("requests", "output_tokens", "prompt_tokens")),
                *(f"{one['slo']['share']:.6f}", f"{per_second['good_requests']:.4f}"),
                *(
                    "" if one[f"{name}_ms"] is None else f"{one[f'{name}_ms'][figure]:.3f}"
                    for name in LATENCIES
                    for figure in shown
                ),
                *(f"{client['late_p99_ms']:.3f}", int(client["is_late"]), int(client["is_busy"])),
            ]
        )
    return out.getvalue()


def write_samples(results: Sequence[Result], out: TextIO) -> None:
    """One line for each request, those of the warm-up and those that were broken off included."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(SAMPLE_COLUMNS)
    for result in results:
        for number, run in enumerate(result.runs):
            for sample in run.samples:
                named = [csv_cell(result.server.name), csv_cell(str(result.load)), number]
                writer.writerow([*named, *_row(sample), int(result.slo.met(sample))])


def _row(sample: Sample) -> Iterator[Any]:
    failure = sample.failure
    yield from (sample.conversation, sample.turn, int(sample.warm_up))
    yield "ok" if failure is None else failure.kind
    yield (failure.status if failure else 200) or ""
    yield csv_cell(failure.code if failure else "")
    yield csv_cell(sample.finish)
    yield f"{sample.intended:.6f}"
    longest = max(sample.gaps, default=None)
    for seconds in (sample.lag, sample.ttft, sample.tpot, longest, sample.e2e):
        yield "" if seconds is None else f"{1000 * seconds:.3f}"
    yield "" if sample.prompt_tokens is None else sample.prompt_tokens
    yield from (sample.output_tokens, sample.chunks)
