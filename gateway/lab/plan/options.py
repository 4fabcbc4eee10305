"""The command's arguments, read."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.lengths import parse_lengths
from gateway.lab.bench.slo import Slo, parse_slo
from gateway.lab.plan.candidate import Serving
from gateway.lab.plan.chips import Chip, read_chips
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.model import read_model
from gateway.lab.plan.precision import Precision, kv_layer_bytes, precision
from gateway.lab.plan.shape import ModelShape
from gateway.lab.plan.workload import Volume, Workload, drawn, recorded

SLO = "ttft=1s,itl=50ms"
RANKS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Question:
    """What is to be planned."""

    shape: ModelShape
    chips: Sequence[Chip]
    ranks: Sequence[int]
    precisions: Sequence[Precision]
    serving: Serving
    workload: Workload
    longest: int
    slo: Slo
    wanted: float
    against: Sequence[str]
    volume: Volume
    calibrated_on: str | None = None
    """``CHIP[,tp=N][,QUANTIZATION]``"""


def question(arguments: argparse.Namespace, ledger: Volume | None = None) -> Question:
    """``ledger``: what was really used in a month. Raises ``PlanError``."""
    shape = read_model(arguments.model)
    try:
        slo = parse_slo(arguments.slo)
        workload = replace(_workload(arguments, ledger), sample=arguments.sample)
    except OptionError as error:
        raise PlanError(str(error)) from None
    if not slo.bounds:
        raise PlanError(f"--slo: there must be a target, as {SLO}; without one the slowest machine will do")
    if arguments.sample < 20:
        raise PlanError("--sample: 20 requests or more, of which shares can be told")
    if not 0 < arguments.slo_share <= 1:
        raise PlanError("--slo-share: a share above 0, up to 1, as 0.95")
    serving = Serving(
        arguments.max_num_seqs,
        arguments.max_batched_tokens,
        max_itl_ratio=2.0 if arguments.max_itl_ratio is None else arguments.max_itl_ratio,
        tuned=arguments.max_itl_ratio is None,
        kv_dtype=arguments.kv_dtype,
    )
    if serving.max_itl_ratio and not 1 < serving.max_itl_ratio < 1e6:
        raise PlanError("--max-itl-ratio: 0 for no bound, or more than 1")
    if not 1 <= serving.max_num_seqs <= serving.max_batched_tokens:
        raise PlanError(
            "--max-num-seqs: from 1 to --max-batched-tokens: each request gets a token of every step"
        )
    attention = shape.attention
    kv_layer_bytes(serving.kv_dtype, attention.kept, attention.head_dim, attention.latent)
    longest = arguments.max_model_len or max(workload.longest, min(shape.longest or 4096, 4096))
    if workload.longest > longest:
        raise PlanError(
            f"--max-model-len {longest:,}: the longest request has {workload.longest:,} tokens; raise it or leave it"
        )
    if shape.longest and longest > shape.longest:
        raise PlanError(
            f"the longest request has {longest:,} tokens, and the model takes {shape.longest:,}: choose another, or "
            "shorten requests (--length-scale)"
        )
    return Question(
        shape,
        _chips(arguments),
        _ranks(arguments.tensor_parallel),
        _precisions(arguments.quantization, shape),
        serving,
        workload,
        longest,
        slo,
        arguments.slo_share,
        arguments.against,
        ledger or workload.volume(),
        arguments.calibrated_on,
    )


def _workload(arguments: argparse.Namespace, ledger: Volume | None) -> Workload:
    rate, seed = arguments.rate, arguments.seed
    if rate is not None and not rate > 0:
        raise PlanError("--rate: requests a second, above 0")
    if arguments.trace is not None:
        if not arguments.speed > 0 or not arguments.length_scale > 0:
            raise PlanError("--speed and --length-scale must be above 0")
        found = recorded(
            Path(arguments.trace), model=arguments.of_model, rate=rate, speed=arguments.speed, seed=seed
        )
        scale = arguments.length_scale
        return found if scale == 1 else found.scaled(prompts=scale, outputs=scale)
    prompt, output = arguments.prompt_tokens, arguments.output_tokens
    if ledger is not None and ledger.requests:
        rate = rate or arguments.peak * ledger.requests / (730 * 3600)
        prompt = prompt or str(max(1, round(ledger.prompt / ledger.requests)))
        output = output or str(max(1, round(ledger.output / ledger.requests)))
    if rate is None or prompt is None or output is None:
        raise PlanError(
            "there must be traffic: --trace FILE, or --rate 5 --prompt-tokens lognormal:1000,1.0 --output-tokens 200, "
            "or --ledger"
        )
    return drawn(
        parse_lengths(prompt, "--prompt-tokens"), parse_lengths(output, "--output-tokens"), rate, seed
    )


def _chips(arguments: argparse.Namespace) -> Sequence[Chip]:
    known = read_chips(arguments.chips)
    names = arguments.chip.split(",") if arguments.chip else list(known)
    chosen = []
    for name in names:
        plain, _, price = name.strip().partition("=")
        if plain not in known:
            raise PlanError(
                f"--chip {plain}: not in the table, which has {', '.join(known)}; --chips FILE adds rows of your own"
            )
        chip = known[plain]
        if price:
            try:
                chip = replace(chip, usd_per_hour=float(price.removeprefix("$")), price_source="given")
            except ValueError:
                raise PlanError(
                    f"--chip {name}: {price} is no price in dollars an hour, as h100=2.50"
                ) from None
        chosen.append(chip)
    return chosen


def _ranks(text: str | None) -> Sequence[int]:
    if text is None:
        return RANKS
    try:
        ranks = [int(part) for part in text.split(",")]
    except ValueError:
        ranks = []
    if not ranks or min(ranks) < 1:
        raise PlanError(f"--tensor-parallel {text}: numbers of chips that share a copy, as 1,2,4")
    return ranks


def _precisions(text: str | None, shape: ModelShape) -> Sequence[Precision]:
    if text is not None:
        return [precision(part.strip()) for part in text.split(",")]
    if shape.stored_bytes is not None and shape.stored == "as stored":
        return [Precision("as stored", 8 * shape.stored_bytes / shape.parameters)]
    if shape.stored is not None:
        return [precision(shape.stored)]
    return [precision(name) for name in dict.fromkeys((shape.dtype, "fp8", "int4"))]


def writable(path: str | None) -> None:
    """Say before the work that its result cannot be kept. Raises ``PlanError``."""
    if path is not None and not os.access(Path(path).absolute().parent, os.W_OK):
        raise PlanError(f"{path}: cannot be written there: no such folder, or not yours")


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """For the report: what was asked, without what was left out."""
    return {name: value for name, value in vars(arguments).items() if name not in ("run", "json") and value}
