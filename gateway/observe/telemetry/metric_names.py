"""The metrics of attempts as each version of the conventions names and divides them.

Up to version 1.41 https://github.com/open-telemetry/semantic-conventions has them; from then on
https://github.com/open-telemetry/semantic-conventions-genai, whose first release measures inference and embeddings
apart, and counts tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.observe.telemetry.measured import TOKENS, Counter, Histogram, Labels, Measured, Series
from gateway.policy.schema.telemetry import Conventions

Metrics = list[Histogram | Counter]

_OPERATION, _EMBEDDINGS = "gen_ai.operation.name", "embeddings"
_UNKNOWN = ("gen_ai.token.modality", "unknown")
"""Backends do not say whose tokens they count: text, images or sound."""


def metrics(measured: Measured, conventions: Conventions) -> Metrics:
    """Those that have a value, under the names of ``conventions``."""
    found = _VERSIONS[conventions](measured)
    return [one for one in found if (one.series if isinstance(one, Histogram) else one.values)]


def _v1_36(measured: Measured) -> Metrics:
    return [replace(measured.duration, name="gen_ai.client.operation.duration"), _token_usage(measured)]


def _v1_41(measured: Measured) -> Metrics:
    first_chunk = replace(measured.first_chunk, name="gen_ai.client.operation.time_to_first_chunk")
    return [*_v1_36(measured), first_chunk]


def _token_usage(measured: Measured) -> Histogram:
    series = {
        (*labels, ("gen_ai.token.type", kind)): one
        for kind, histogram in (("input", measured.input_tokens), ("output", measured.output_tokens))
        for labels, one in histogram.series.items()
    }
    about = "Number of input and output tokens used."
    return Histogram("gen_ai.client.token.usage", "{token}", about, TOKENS, series)


def _genai_v0_1(measured: Measured) -> Metrics:
    duration, embedding = _divided(measured.duration, "gen_ai.client.embeddings.duration")
    asked, embedded = _divided(measured.input_tokens, "gen_ai.client.embeddings.operation.input_tokens")
    answered, _ = _divided(measured.output_tokens, "")
    usage = "gen_ai.client.inference.usage"
    counters = [
        Counter(f"{usage}.input_tokens", "{token}", "Tokens of prompts.", _sums(asked)),
        Counter(f"{usage}.output_tokens", "{token}", "Tokens of answers.", _sums(answered)),
        measured.cache_read,
        measured.cache_write,
        measured.reasoning,
    ]
    with_modality = [
        replace(one, values={(*labels, _UNKNOWN): value for labels, value in one.values.items() if value})
        for one in counters
    ]
    return [duration, embedding, measured.first_chunk, asked, answered, embedded, *with_modality]


def _divided(histogram: Histogram, embeddings: str) -> tuple[Histogram, Histogram]:
    """Its series of inference, and those of embeddings under a name of their own."""
    own: dict[Labels, Series] = {}
    other: dict[Labels, Series] = {}
    for labels, series in histogram.series.items():
        (other if _embeds(labels) else own)[labels] = series
    return replace(histogram, series=own), replace(histogram, name=embeddings, series=other)


def _embeds(labels: Labels) -> bool:
    return (_OPERATION, _EMBEDDINGS) in labels


def _sums(histogram: Histogram) -> dict[Labels, int]:
    return {labels: int(series.sum) for labels, series in histogram.series.items()}


_VERSIONS: Mapping[Conventions, Callable[[Measured], Metrics]] = {
    "v1.36": _v1_36,
    "v1.41": _v1_41,
    "genai-v0.1": _genai_v0_1,
}
