"""Figures of predictions made by hand."""

from __future__ import annotations

import math

import pytest
import torch

from engine.evaluation.gate import Limits, beyond
from engine.evaluation.measures import Tally
from engine.evaluation.reference import Reference
from engine.evaluation.samples import Sample


def logits(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


HALF, SURE = [0.5, 0.25, 0.25], [0.02, 0.96, 0.02]


def tally(samples: list[Sample], reference: list[torch.Tensor], model: list[torch.Tensor]) -> Tally:
    kept = Reference(samples, 3, (iter(rows.split(2)) for rows in reference))
    found = Tally(samples)
    for number, rows in enumerate(model):
        found.add(number, iter(rows.split(1)), kept)
    kept.close()
    return found


def test_divergence_perplexity_agreement_and_scores() -> None:
    samples = [Sample([0, 0, 1], answer=2), Sample([0, 1], "other")]
    found = tally(samples, [logits(HALF, SURE), logits(SURE)], [logits(SURE, SURE), logits(HALF)]).strata()
    assert list(found) == ["all", "text", "other"]
    apart = sum(p * math.log(p / q) for p, q in zip(HALF, SURE, strict=True))
    text = found["text"]
    assert text.tokens == 2 and text.kl.value == pytest.approx(apart / 2, rel=2e-3)
    assert text.perplexity.value == pytest.approx((0.02 * 0.96) ** -0.5, rel=1e-3)
    assert text.ratio.value == pytest.approx((0.5 / 0.02) ** 0.5, rel=2e-3)
    assert text.agreement.value == 0.5 and text.right.value == 0.5 and text.reference_right == 1
    # Of the answer, its last token.
    assert text.exact is not None and text.exact.value == 1 and text.reference_exact == 1
    assert text.lost is not None and text.lost.value == 0
    other = found["other"]
    assert other.right.value == 0 and other.reference_right == 1 and other.exact is None
    assert found["all"].tokens == 3


def test_divergence_is_told_by_position() -> None:
    sample = Sample([0] * 21)
    model = torch.cat([logits(HALF).expand(16, 3), logits(SURE).expand(4, 3)])
    first, second, *later = tally([sample], [logits(HALF).expand(20, 3)], [model]).kl_by_position()
    apart = sum(p * math.log(p / q) for p, q in zip(HALF, SURE, strict=True))
    assert first == pytest.approx(0, abs=1e-4) and second == pytest.approx(apart, rel=2e-3)
    assert later == [None, None]


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """100 times 40 texts of which a quarter agrees, on average: 95 intervals of 100 hold that, give or take."""
    generator = torch.Generator().manual_seed(0)
    samples = [Sample([0, 0])] * 40
    held = 0
    for _ in range(100):
        same = torch.rand(40, generator=generator) < 0.25
        rows = [logits([0.6, 0.2, 0.2] if agrees else [0.2, 0.6, 0.2]) for agrees in same]
        figure = tally(samples, [logits([0.6, 0.2, 0.2])] * 40, rows).strata()["all"].agreement
        held += figure.low <= 0.25 <= figure.high
    assert 85 <= held <= 99


def test_what_few_texts_show_does_not_pass() -> None:
    """A mean within the limit is not enough: its interval has to be."""
    limits = Limits(kl=0.7, ratio=9, agreement=0, lost=1)
    good, bad = logits(HALF), logits([0.02, 0.02, 0.96])
    apart = [good, good, good, bad]
    few = tally([Sample([0, 0])] * 4, [good] * 4, apart).strata()
    many = tally([Sample([0, 0])] * 160, [good] * 160, apart * 40).strata()
    assert few["all"].kl.value == pytest.approx(many["all"].kl.value)
    assert few["all"].kl.value < limits.kl
    assert any("KL may be" in line for line in beyond(limits, few))
    assert list(beyond(limits, many)) == []
    # Of one text every draw is the same.
    one = tally([Sample([0, 0])], [good], [good]).strata()
    assert any("1 texts show nothing" in line for line in beyond(limits, one))
