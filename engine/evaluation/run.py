"""``python -m engine eval``: each way to keep a model beside the unquantized one, on the same tokens.

The demo model is examined on held-out conversations, others on texts of yours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.errors import ModelUnavailable, StartupError
from engine.evaluation.gate import Limits, beyond
from engine.evaluation.measures import Tally
from engine.evaluation.reference import Reference
from engine.evaluation.report import HEAD, Result
from engine.evaluation.samples import Sample, exam, read_texts
from engine.evaluation.ways import FULL, WAYS, Way, predict, weight_bytes
from engine.models.registry import read_config
from engine.weights.source import DEMO, locate
from engine.worker.device import pick_threads


def evaluate(
    folder: Path,
    samples: Sequence[Sample],
    ways: Sequence[Way],
    limits: Limits,
    report: Callable[[Result], None],
) -> list[Result]:
    """One result for each of ``ways``, beside the model in ``folder`` in float32. Raises ``StartupError``."""
    model = FULL.load(folder)
    reference = Reference(samples, model.vocab_size, predict(model, samples, FULL))
    results = []
    try:
        for way in ways:
            if way != FULL:
                # The last one goes before the next one comes.
                del model
                model = way.load(folder)
            tally = Tally(samples)
            for number, pieces in enumerate(predict(model, samples, way)):
                tally.add(number, pieces, reference)
            strata = tally.strata()
            found = list(beyond(limits, strata))
            results.append(
                Result(way.name, weight_bytes(model) / 2**20, strata, tally.kl_by_position(), found)
            )
            report(results[-1])
    finally:
        reference.close()
    return results


def run(options: dict[str, Any]) -> int:
    """1 where a limit is not kept. Raises ``StartupError`` if a model or the text cannot be read."""
    models = options["model"]
    if options["reference"] is None and len(models) > 1:
        raise StartupError("Several models are compared with one: give --reference MODEL.")
    folder = locate(options["reference"] or models[0])
    samples = _samples(folder, options, options["reference"] or models[0])
    torch.set_num_threads(pick_threads(folder))
    limits = Limits(*(options[name] for name in ("max_kl", "max_perplexity", "min_agreement", "max_lost")))
    ways = _ways(folder, options)
    if options["json"]:
        results = evaluate(folder, samples, ways, limits, lambda result: None)
        _print(json.dumps([result.json() for result in results], indent=2))
    else:
        tokens = sum(len(sample.tokens) - 1 for sample in samples)
        _print(
            f"{options['reference'] or models[0]}: {tokens} tokens of {len(samples)} texts; ranges: 95 %\n\n{HEAD}"
        )
        results = evaluate(folder, samples, ways, limits, lambda result: _print("\n".join(result.lines())))
        _print("\n" + "\n".join(result.positions() for result in results))
    failed = [f"{result.name}: {line}" for result in results for line in result.beyond]
    if failed:
        sys.stderr.write("\n  ".join(["beyond the limits:", *failed]) + "\n")
    return int(bool(failed))


def _samples(folder: Path, options: dict[str, Any], model: str) -> list[Sample]:
    if options["text"] is not None:
        return read_texts(folder, options["text"])
    if model != DEMO:
        raise ModelUnavailable("Give --text FILE: only the demo model has held-out texts of its own.")
    if options["count"] < 1:
        raise StartupError(f"--count must be at least 1, not {options['count']}.")
    return exam(folder, options["count"])


def _ways(folder: Path, options: dict[str, Any]) -> Sequence[Way]:
    quantization, kv_cache_dtype = options["quantization"], options["kv_cache_dtype"]
    if options["reference"] is not None:
        return [
            Way(
                name, quantization=quantization, kv_cache_dtype=kv_cache_dtype or "auto", folder=locate(model)
            )
            for name, model in map(_named, options["model"])
        ]
    if quantization or kv_cache_dtype:
        asked = [quantization, f"KV cache {kv_cache_dtype}" if kv_cache_dtype else None]
        name = " and ".join(filter(None, asked))
        return (FULL, Way(name, quantization=quantization, kv_cache_dtype=kv_cache_dtype or "auto"))
    if "quantization_config" in read_config(folder):
        # Weights that are quantized already can only be widened.
        return tuple(way for way in WAYS if way.quantization is None)
    return WAYS


def _named(model: str) -> tuple[str, str]:
    """``NAME=MODEL``, or a model alone, which is its own name."""
    name, equals, folder = model.partition("=")
    return (name, folder) if equals and not Path(model).exists() else (model, model)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
