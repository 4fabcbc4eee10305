"""Which policies need the sidecar, and what for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.policy.schema import Policy
from gateway.sidecar.requirements import needs_sidecar, sidecar_config

SOCKET = Path("/run/s")


def policy(**more: Any) -> Policy:
    backends = {"x": {"kind": "fake", "script": [{"reply": "x"}]}, **more.pop("backends", {})}
    models = {"m": {"targets": [{"backend": "x", "model": "x"}]}}
    return Policy.model_validate({"version": 1, "backends": backends, "models": models, **more})


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"guards": {"pii": {"entities": ["EMAIL_ADDRESS", "ES_PASSPORT"]}}}, {"entities"}),
        ({"guards": {"pii": {"entities": ["PERSON", "ADDRESS"]}}}, {"embedder"}),
        ({"guards": {"pii": {"entities": ["PERSON", "DATE_TIME"]}}}, {"embedder", "entities"}),
        (
            {"guards": {"pii": {"entities": ["PERSON"]}}, "sidecar": {"spacy": {"en": "en_core_web_sm"}}},
            {"entities"},
        ),
        ({"guards": {"pii": {"checks": ["model"]}}}, {"entities"}),
        ({"guards": {"injection": {}}}, {"embedder"}),
        ({"guards": {"toxicity": {}}}, {"embedder"}),
        ({"guards": {"toxicity": {"classifier": {"model": "a/b", "unsafe": ["x"]}}}}, {"classifiers"}),
        ({"caches": {"semantic": {}}}, {"embedder", "index"}),
        ({"caches": {"semantic": {"mode": "shadow"}}}, {"embedder", "index"}),
        ({"backends": {"e": {"kind": "sidecar"}}}, {"embedder"}),
    ],
)
def test_it_is_needed_for_just_what_is_asked(more: dict[str, Any], wanted: set[str]) -> None:
    given = policy(**more)
    assert needs_sidecar(given)
    config = sidecar_config(given, SOCKET)
    assert config.socket == "/run/s"
    assert {
        name for name in ("embedder", "entities", "index", "classifiers") if getattr(config, name)
    } == wanted


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"guards": {"pii": {}}},
        {"guards": {"pii": {"checks": ["fast"]}, "toxicity": {"checks": ["fast"]}, "secrets": {}}},
        {"caches": {"exact": {}, "semantic": {"mode": "off"}}},
    ],
    ids=["nothing", "entities with patterns", "fast checks", "exact answers"],
)
def test_it_is_not_needed_otherwise(more: dict[str, Any]) -> None:
    assert not needs_sidecar(policy(**more))


def test_an_edit_elsewhere_is_no_reason_to_start_it_anew() -> None:
    before = policy(guards={"toxicity": {"threshold": 0.5}})
    after = policy(guards={"toxicity": {"threshold": 0.9}}, store="redis://h/0")
    assert sidecar_config(before, SOCKET) == sidecar_config(after, SOCKET)
    other = policy(guards={"toxicity": {}}, sidecar={"threads": 2})
    assert sidecar_config(before, SOCKET) != sidecar_config(other, SOCKET)


def test_the_store_is_where_answers_are_kept() -> None:
    given = policy(caches={"semantic": {"max_bytes": "1MiB", "max_entries": 7}}, store="redis://h/0")
    config = sidecar_config(given, SOCKET)
    assert (config.redis, config.index_bytes, config.index_entries) == ("redis://h/0", 2**20, 7)
