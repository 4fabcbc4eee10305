"""What a policy says of guards, caches and the sidecar has to fit the rest of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from gateway.policy.rules.subject import Draft
from gateway.policy.rules.table import errors
from tests.fakes import policy

BASE = """
version: 1
backends:
  far: {kind: openai, base_url: http://far.test/v1}
  near: {kind: fake, script: [{reply: x}]}
  vectors: {kind: sidecar}
models:
  m: {targets: [{backend: far, model: x}]}
  both: {cascade: [{model: m}, {model: m}]}
  embed: {targets: [{backend: vectors, model: x}]}
"""


def findings(more: str, *, without: str | None = None) -> list[str]:
    content: dict[str, Any] = yaml.safe_load(BASE)
    if without:
        del content["backends"][without]
    content.update(yaml.safe_load(more))
    return [f"{'.'.join(map(str, found.path))}: {found.message}" for found in errors(Draft(content))]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("guards: {toxicity: {judge: mm}}", "guards.toxicity.judge: no model is named 'mm'; did you mean"),
        ("guards: {injection: {judge: both}}", "guards.injection.judge: 'both' is a cascade"),
        ("guards: {pii: {entities: [EMAIL]}}", "guards.pii.entities: EMAIL: nobody here can find it"),
        ("guards: {pii: {entities: [NRP]}}", "guards.pii.entities: NRP: it takes a spaCy model"),
        ("guards: {topics: {patterns: ['(a+)+b']}}", "guards.topics.patterns.0: has a repetition inside"),
        ("{sidecar: {embedder: x}, guards: {toxicity: {}}}", "guards.toxicity: was trained for"),
        (
            "{sidecar: {embedder: x}, caches: {semantic: {ttl: 1h}}}",
            "caches.semantic: its verifier was trained",
        ),
        (
            "models: {embed: {targets: [{backend: vectors, model: x}]}, c: {cascade: [{model: embed}]}}",
            "models.c.cascade.0.model: 'embed' only makes embeddings",
        ),
    ],
)
def test_what_cannot_work_is_said(more: str, said: str) -> None:
    (found,) = findings(more)
    assert found.startswith(said)


def test_keeping_local_needs_a_local_backend() -> None:
    far = "backends: {far: {kind: openai, base_url: 'http://far.test/v1'}}"
    far_only = f"{{guards: {{pii: {{action: local}}}}, {far}, models: {{}}}}"
    (found,) = findings(far_only)
    assert found.startswith("guards.pii.action: no backend is local")


@pytest.mark.parametrize(
    "more",
    [
        "guards: {toxicity: {judge: m}, pii: {action: local}}",
        "{sidecar: {embedder: x}, guards: {toxicity: {checks: [fast]}}}",
        "{sidecar: {embedder: x}, guards: {injection: {classifier: {model: y, unsafe: [z]}}}}",
        "{sidecar: {embedder: x}, caches: {semantic: {mode: 'off'}, exact: {}}}",
        "{guards: {pii: {entities: [PERSON, EMAIL_ADDRESS]}}, sidecar: {spacy: {en: en_core_web_sm}}}",
        "guards: [1]",
        "{guards: {a: 3, toxicity: {judge: [1], checks: fast}}, caches: 7, sidecar: [x]}",
    ],
)
def test_the_rest_is_let_be(more: str) -> None:
    assert findings(more) == []


@pytest.mark.parametrize("kind", ["injection", "toxicity"])
def test_a_classifier_that_would_never_be_asked_is_refused(kind: str) -> None:
    guard = {"kind": kind, "checks": ["fast"], "classifier": {"model": "x", "unsafe": ["y"]}}
    with pytest.raises(ValidationError, match="never asked"):
        policy(guards={"it": guard})


@pytest.mark.parametrize(("key", "on"), [("canary", "input"), ("spotlight", "output")])
def test_marks_where_nobody_would_look_are_refused(key: str, on: str) -> None:
    policy(guards={"it": {"kind": "injection", key: True, "on": ["input", "output"]}})
    with pytest.raises(ValidationError, match=f"'{key}'"):
        policy(guards={"it": {"kind": "injection", key: True, "on": [on]}})
