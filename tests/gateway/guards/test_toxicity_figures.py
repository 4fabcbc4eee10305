"""The tables in docs/guards.md are what training measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
