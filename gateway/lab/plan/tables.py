"""The plan as text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.lab.plan.money import usd_per_million
from gateway.lab.plan.numbers import count, money, seconds
from gateway.lab.plan.plan import Plan, efficiency_told
from gateway.lab.plan.search import Option
from gateway.lab.plan.trial import told as trial_told
from gateway.lab.plan.workload import MONTH

HEADINGS = (
    *(
        "MACHINES",
        "REPLICAS",
        "USD/MONTH",
        "USD/M TOKENS",
        "TTFT P95",
        "ITL P95",
        "BATCH",
        "BUSY",
        "KV MAX",
        "KV BLOCKS",
    ),
    "BOUND BY",
)
SHOWN_MISFITS = 8


def as_text(plan: Plan) -> Iterator[str]:
    yield from about(plan)
    yield ""
    if plan.best is None:
        yield "Nothing keeps the targets. What comes nearest, and what it lacks:"
        yield from _reasons(plan, 20)
        yield "Looser targets (--slo, --slo-share), shorter requests, or other chips (--chips) may be."
        return
    rows = [HEADINGS, *(cells(plan, option) for option in plan.outcome.options)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) if place in (0, len(row) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
    yield ""
    yield from details(plan)
    yield from _reasons(plan, SHOWN_MISFITS)


def about(plan: Plan) -> Iterator[str]:
    asked = plan.question
    shape, work = asked.shape, asked.workload
    active = f", {count(shape.active)} active" if shape.mixture else ""
    token = shape.attention.kept * 2 * len(shape.windows)
    yield f"{shape.name}: {count(shape.parameters)} parameters{active}, {token / 1000:,.1f} kB of KV a token in 16 bits"
    peak = work.peak_rate(min(len(work.arrivals), 500))
    yield (
        f"{work.name}: {work.mean_rate:.3g} requests a second ({peak:.3g} in the busiest stretch), prompts of "
        f"{work.mean_prompt:,.0f} tokens and answers of {work.mean_output:,.0f}"
    )
    yield f"Targets: {asked.slo} for {asked.wanted:.0%} of the requests"


def cells(plan: Plan, option: Option) -> tuple[str, ...]:
    found = option.found
    candidate = found.candidate
    return (
        candidate.name,
        str(found.replicas),
        f"{option.usd_per_month:,.0f}",
        f"{million(plan, option):.3g}",
        _figure(found.figures["ttft"]),
        _figure(found.figures["itl"]),
        f"{found.batch:.1f}",
        f"{found.busy:.0%}",
        f"{found.kv_max:.0%}",
        f"{candidate.blocks:,}",
        option.binds(plan.question.wanted),
    )


def million(plan: Plan, option: Option) -> float:
    """Dollars of a million tokens, prompts and answers together, at the month's volume."""
    machines = option.usd_per_month / (MONTH / 3600)
    return usd_per_million(machines, plan.question.volume.tokens / MONTH)


def details(plan: Plan, *, changes: bool = True) -> Iterator[str]:
    best = plan.best
    if best is None:
        return
    found, volume = best.found, plan.question.volume
    candidate, memory = found.candidate, found.candidate.memory
    parts = sorted(found.limits.items(), key=lambda one: -one[1])
    serving = candidate.serving
    yield (
        f"Cheapest: {found.replicas} x ({candidate.name}), served with --max-num-seqs {serving.max_num_seqs} "
        f"--max-batched-tokens {serving.max_batched_tokens} --max-itl-ratio {serving.max_itl_ratio:g}."
    )
    yield "Time goes to " + ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= 0.01) + "."
    yield (
        f"Of a chip's {memory.total / 1e9:.0f} GB: weights {memory.weights / 1e9:.1f}, activations "
        f"{memory.activations / 1e9:.1f}, reserved {memory.reserved / 1e9:.1f}, {candidate.blocks:,} KV blocks of "
        f"{candidate.serving.block_size} tokens {candidate.blocks * candidate.block_bytes / 1e9:.1f}."
    )
    mean = plan.question.workload.mean_rate / found.replicas / found.rate if found.rate else 1.0
    yield (
        f"A month: {volume.requests:,.0f} requests, {count(volume.prompt)} prompt and {count(volume.output)} answer "
        f"tokens ({volume.source}); machines are busy {min(1.0, found.busy * mean):.0%} of the time."
    )
    for row in plan.break_evens:
        cheaper = "cheaper" if row.share < 1 else "dearer"
        yield (
            f"Against {row.model} (${row.input:g} / ${row.output:g} a million, {row.read}): "
            f"{money(row.usd_per_month)} a month; own machines are {cheaper}, break-even at {row.share:.2g} of this "
            f"volume ({count(row.share * volume.tokens)} tokens a month)."
        )
    for change in plan.changes if changes else ():
        told = (
            "no number of replicas keeps the targets"
            if change.usd_per_month is None
            else f"{change.replicas} replicas, {money(change.usd_per_month)} a month"
        )
        yield f"With {change.what}: {told}."
    yield _trust(plan)


def _trust(plan: Plan) -> str:
    reached = plan.reached
    if plan.fit is not None:
        return (
            f"Calibrated by {plan.fit.told}: {reached.bandwidth:.0%} of the bandwidth, {reached.compute:.0%} of the "
            f"FLOPs, a step {seconds(reached.step)}, a request in it {seconds(reached.sequence)}, a request "
            f"{seconds(reached.request)}; loads are met within {plan.fit.error:.0%}. For other chips than the measured "
            "one that is a guess."
        )
    return (
        f"Assumed: {reached.bandwidth:.0%} of the bandwidth and {reached.compute:.0%} of the FLOPs are reached, a step "
        f"takes {seconds(reached.step)} beside; --calibration FILE (of tollgate bench) replaces that. Quantized "
        "weights cost quality: python -m engine eval measures it."
    )


def _reasons(plan: Plan, most: int) -> Iterator[str]:
    outcome = plan.outcome
    for misfit in outcome.misfits[:most]:
        yield f"Not {misfit.name}: {misfit.reason}."
    if len(outcome.misfits) > most:
        yield f"Nor {len(outcome.misfits) - most} others (--json has them)."
    if outcome.dearer:
        names = ", ".join(f"{name} ({money(usd)} at least)" for name, usd in outcome.dearer[:4])
        more = f" and {len(outcome.dearer) - 4} more" if len(outcome.dearer) > 4 else ""
        yield f"Dearer: {names}{more}."
    if outcome.untried:
        names = ", ".join(f"{name} ({money(usd)} at least)" for name, usd in outcome.untried[:4])
        yield f"Not tried, as time was up: {names}; name fewer with --chip, --tensor-parallel, --quantization."


def as_json(plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
    asked, outcome = plan.question, plan.outcome
    shape, work = asked.shape, asked.workload
    return {
        "options": dict(given),
        "model": {
            "name": shape.name,
            "parameters": shape.parameters,
            "active_parameters": shape.active,
            "layers": shape.layers,
            "kv_bytes_per_token_16bit": shape.attention.kept * 2 * len(shape.windows),
            "state_bytes_16bit": shape.state_bytes(2),
            "stored": shape.stored or shape.dtype,
        },
        "traffic": {
            "name": work.name,
            "requests_per_second": work.mean_rate,
            "prompt_tokens_mean": work.mean_prompt,
            "output_tokens_mean": work.mean_output,
            "longest": work.longest,
            "possible_prefix_hits": work.hits,
        },
        "month": {
            "requests": asked.volume.requests,
            "prompt_tokens": asked.volume.prompt,
            "output_tokens": asked.volume.output,
            "cached_tokens": asked.volume.cached,
            "source": asked.volume.source,
        },
        "targets": {"seconds": dict(asked.slo.bounds), "share": asked.wanted},
        "efficiency": efficiency_told(plan.reached),
        "calibration": plan.fit and {"measured": plan.fit.told, "error": plan.fit.error},
        "plans": [
            {
                **trial_told(option.found),
                "usd_per_million_tokens": million(plan, option),
                "bound_by": option.binds(asked.wanted),
            }
            for option in outcome.options
        ],
        "break_even": [
            {
                "model": row.model,
                "usd_per_month": row.usd_per_month,
                "share_of_volume": row.share,
                "tokens_per_month": row.share * asked.volume.tokens,
                "source": row.source,
                "read": row.read,
            }
            for row in plan.break_evens
        ],
        "changes": [
            {"what": one.what, "replicas": one.replicas, "usd_per_month": one.usd_per_month}
            for one in plan.changes
        ],
        "unfit": [{"name": one.name, "reason": one.reason} for one in outcome.misfits],
        "dearer": _at_least(outcome.dearer),
        "untried": _at_least(outcome.untried),
        "chips": {
            chip.name: {
                "usd_per_hour": chip.usd_per_hour,
                "specs": chip.source,
                "price": chip.price_source,
                "read": chip.read,
            }
            for chip in asked.chips
        },
        "simulations": plan.simulations,
    }


def _at_least(rows: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"name": name, "usd_per_month_at_least": usd} for name, usd in rows]


def _figure(figures: Mapping[str, float]) -> str:
    return seconds(figures["p95"]) if figures else "-"
