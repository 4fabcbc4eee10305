"""The tables in docs/guards.md are what training measured, and what is served is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.guards.scanners.toxicity import toxicity
from gateway.policy.schema.guards import ToxicityGuard
from tests.sidecars import SidecarProcess
from training.toxicity_frames import HARMFUL, checks
from training.toxicity_tables import Kind, kinds_table

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs" / "guards.md").read_text(encoding="utf-8")
MEASURED: dict[str, Any] = json.loads(
    (ROOT / "gateway" / "sidecar" / "heads" / "toxicity.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("scheme", ["left out", "third left out"])
def test_by_source(scheme: str) -> None:
    for one in MEASURED[scheme]:
        start = f"| {one['source']} | {one['language']} | {one['texts']:,} | {one['auc']:.3f} | {one['own_auc']:.3f} |"
        assert start in DOCS


def test_the_mean_of_english_sources() -> None:
    highest, own = (
        MEASURED[name]
        for name in ("mean AUC of English sources left out", "the same, by each source's own category")
    )
    assert f"is {highest:.2f} and {own:.2f}" in " ".join(DOCS.split())


def test_no_group_is_flagged_more_often_than_told() -> None:
    assert max(one["flagged"] for one in MEASURED["groups"]) <= 0.03
    for one in MEASURED["groups"]:
        assert one["group"] in DOCS


def test_few_harmless_sentences_in_harmful_frames_are_flagged_and_the_table_tells_it() -> None:
    kinds = [Kind(**one) for one in MEASURED["kinds"]]
    harmless = [one for one in kinds if one.kind not in HARMFUL]
    assert sum(one.texts for one in harmless) >= 300
    assert sum(one.flagged * one.texts for one in harmless) <= 0.01 * sum(one.texts for one in harmless)
    assert kinds_table(kinds) in DOCS


@pytest.mark.anyio
async def test_what_is_served_flags_what_was_measured(sidecar: SidecarProcess) -> None:
    client = sidecar.client()
    guard = toxicity(ToxicityGuard(kind="toxicity"), client, None)
    flagged: dict[tuple[str, str], list[bool]] = {}
    for one in checks():
        verdict = guard.quick(one.text, "user") or (await guard.thorough([one.text], "user"))[0]
        labels = {finding.label for finding in verdict.findings}
        found = "self_harm" in labels if one.kind == "despair" else bool(labels)
        flagged.setdefault((one.kind, one.language), []).append(found)
    await client.aclose()
    for one in MEASURED["kinds"]:
        found = flagged[one["kind"], one["language"]]
        assert len(found) == one["texts"]
        assert abs(sum(found) - one["flagged"] * one["texts"]) <= 1, one
