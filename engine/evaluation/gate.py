"""Whether a model is as good as its limits ask, with confidence: what was not shown does not pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.evaluation.measures import Measures

FEWEST = 4
"""Texts below which an interval over texts says nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Each holds for all texts, and for each stratum: a model that lost its German is damaged, whatever its mean."""

    kl: float
    """Most nats a token that its interval may reach."""
    ratio: float
    """Most times the reference's perplexity."""
    agreement: float
    """Least share of tokens where both find the same most likely."""
    lost: float
    """Most of the answers lost, as they were counted: there are too few for an interval."""


def beyond(limits: Limits, strata: Mapping[str, Measures]) -> Iterator[str]:
    """A line for each limit that is not kept."""
    for name, found in strata.items():
        if found.texts < FEWEST:
            yield f"{name}: {found.texts} texts show nothing, take {FEWEST} at least"
        kl, ratio, agreement, lost = found.kl, found.ratio, found.agreement, found.lost
        if not kl.high <= limits.kl:
            yield f"{name}: KL may be {kl.high:.4f} nats a token, the limit is {limits.kl:g}"
        if not ratio.high <= limits.ratio:
            yield f"{name}: perplexity may be {ratio.high:.3f} times the reference's, the limit is {limits.ratio:g}"
        if not agreement.low >= limits.agreement:
            yield f"{name}: the same token may be {agreement.low:.1%} of all, the limit is {limits.agreement:.1%}"
        if lost is not None and not lost.value <= limits.lost:
            yield f"{name}: {lost.value:.1%} of the answers were lost, the limit is {limits.lost:.1%}"
