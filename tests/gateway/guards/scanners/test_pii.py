"""The guard as a whole: what it decides by itself, what it asks the sidecar, and how overlaps end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.findings import Finding
from gateway.guards.scanners.pii import Pii, apart
from gateway.guards.scanners.scanner import Unscanned
from gateway.policy.schema.guards import PiiGuard
from gateway.sidecar.api import SidecarBusy

pytestmark = pytest.mark.anyio

EVERY = (
    "EMAIL_ADDRESS",
    "PHONE_NUMBER",
    "CREDIT_CARD",
    "IBAN_CODE",
    "US_SSN",
    "IP_ADDRESS",
    "URL",
    "UK_NHS",
    "CRYPTO",
)


class Sidecar:
    """Knows one name, and how often it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self._error = error

    async def entities(
        self, texts: Sequence[str], *, language: str, entities: Sequence[str]
    ) -> list[list[Finding]]:
        self.asked.append((language, tuple(entities)))
        if self._error:
            raise self._error
        return [
            [Finding("PERSON", text.index("Ann"), text.index("Ann") + 3, 0.85)] if "Ann" in text else []
            for text in texts
        ]


def guard(*entities: str, **more: Any) -> PiiGuard:
    return PiiGuard(kind="pii", entities=entities, **more)


def pii(config: PiiGuard, sidecar: Any = None) -> Pii:
    return Pii(config, sidecar)


TEXT = "Ann, ann@example.org, 10.1.2.3"


def test_patterns_alone_decide_at_once() -> None:
    verdict = pii(guard("IP_ADDRESS", "EMAIL_ADDRESS")).quick(TEXT, "user")
    assert verdict is not None and verdict.check == "fast"
    assert [(it.label, TEXT[it.start : it.end]) for it in verdict.findings] == [
        ("EMAIL_ADDRESS", "ann@example.org"),
        ("IP_ADDRESS", "10.1.2.3"),
    ]
    assert verdict.score == 0.95


def test_only_the_entities_that_are_named() -> None:
    verdict = pii(guard("PHONE_NUMBER")).quick(TEXT, "user")
    assert verdict is not None and verdict.findings == () and verdict.score == 0.0


def test_the_threshold() -> None:
    below = pii(guard("PHONE_NUMBER", threshold=0.9)).quick("phone 467 3395", "user")
    assert below is not None and below.findings == () and below.score == 0.65
    at = pii(guard("PHONE_NUMBER", threshold=0.65)).quick("phone 467 3395", "user")
    assert at is not None and len(at.findings) == 1


async def test_names_are_asked_of_the_sidecar_and_both_are_joined() -> None:
    sidecar = Sidecar()
    scanner = pii(guard("PERSON", "EMAIL_ADDRESS"), sidecar)
    assert scanner.quick(TEXT, "user") is None
    verdicts = await scanner.thorough([TEXT, "nobody"], "user")
    assert [it.label for it in verdicts[0].findings] == ["PERSON", "EMAIL_ADDRESS"]
    assert verdicts[0].check == "model" and verdicts[1].findings == ()
    assert sidecar.asked == [("en", ("PERSON",))]


async def test_numbers_are_looked_for_in_one_language_and_names_in_all() -> None:
    sidecar = Sidecar()
    await pii(guard("PERSON", "DE_KFZ", languages=("en", "de")), sidecar).thorough([TEXT], "user")
    assert sorted(sidecar.asked) == [("de", ("PERSON",)), ("en", ("PERSON", "DE_KFZ"))]


async def test_the_model_alone() -> None:
    sidecar = Sidecar()
    scanner = pii(guard("EMAIL_ADDRESS", checks=("model",)), sidecar)
    assert scanner.quick("nothing", "user") is None and scanner.longest > 0
    await scanner.thorough(["nothing"], "user")
    assert sidecar.asked == [("en", ("EMAIL_ADDRESS",))]


async def test_a_sidecar_that_fails_leaves_the_text_unscanned() -> None:
    with pytest.raises(Unscanned, match="SidecarBusy"):
        await pii(guard("PERSON"), Sidecar(SidecarBusy("full"))).thorough([TEXT], "user")
    with pytest.raises(Unscanned, match="no sidecar"):
        await pii(guard("PERSON")).thorough([TEXT], "user")


def test_the_fast_check_alone_needs_no_sidecar() -> None:
    assert pii(guard("PERSON", "EMAIL_ADDRESS", checks=("fast",))).quick(TEXT, "user") is not None


def test_the_score_decides_an_overlap_then_the_policys_order_then_the_length() -> None:
    order = {"A": 0, "B": 1}
    assert apart([Finding("A", 0, 9, 0.6), Finding("B", 3, 5, 0.7)], order) == [Finding("B", 3, 5, 0.7)]
    assert apart([Finding("B", 0, 9, 0.6), Finding("A", 3, 5, 0.6)], order) == [Finding("A", 3, 5, 0.6)]
    assert apart([Finding("A", 3, 5, 0.6), Finding("A", 0, 9, 0.6)], order) == [Finding("A", 0, 9, 0.6)]


def test_an_address_within_an_address() -> None:
    verdict = pii(guard("EMAIL_ADDRESS", "URL", "IP_ADDRESS")).quick(
        "http://10.1.2.3/?to=ann@example.org", "user"
    )
    assert verdict is not None and [it.label for it in verdict.findings] == ["URL"]


SPANS = st.builds(
    lambda label, start, length, score: Finding(label, start, start + length, score),
    st.sampled_from("ABC"), st.integers(0, 50), st.integers(0, 20), st.sampled_from([0.5, 0.7, 0.9]),
)  # fmt: skip


@given(st.lists(SPANS, max_size=20))
def test_what_stays_is_apart_and_in_order(findings: list[Finding]) -> None:
    kept = apart(findings, {"A": 0})
    assert all(first.end <= second.start for first, second in pairwise(kept))
    assert set(kept) <= set(findings)
    # Whatever went had to go: something as sure stands in its place.
    for gone in set(findings) - set(kept):
        if gone.end > gone.start:
            assert any(it.start < gone.end and gone.start < it.end and it.score >= gone.score for it in kept)


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    verdict = pii(PiiGuard(kind="pii", entities=EVERY)).quick(text, "user")
    assert verdict is not None
    end = 0
    for finding in verdict.findings:
        assert end <= finding.start < finding.end <= len(text)
        assert finding.score <= verdict.score
        end = finding.end


@pytest.mark.parametrize(
    "written",
    [
        "\uff41nn\uff20mail\uff0eorg",
        "ann\u200b@ma\u2060il.org",
        "_ann@mail.org_",
        "4556\u00a07375\u00a08689\u00a09855",
        "4556\u20137375\u20138689\u20139855",
        "\u0664\u0665\u0665\u0666\u0667\u0663\u0667\u0665\u0668\u0666\u0668\u0669\u0669\u0668\u0665\u0665",
        "4556\u200b7375\u200b8689\u200b9855",
    ],
    ids=[
        "full width",
        "invisible",
        "emphasis",
        "no-break spaces",
        "en dashes",
        "Arabic digits",
        "split digits",
    ],
)
def test_how_it_is_written_does_not_hide_it(written: str) -> None:
    scanner = pii(guard("EMAIL_ADDRESS", "CREDIT_CARD"))
    (finding,) = scanner.quick(f"\U0001f600 card: {written} \u00e9", "answer").findings  # type: ignore[union-attr]
    assert finding.start == 8
    assert finding.end == 8 + len(written.rstrip("_"))
