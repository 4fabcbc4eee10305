"""Who finds which entity."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.pii.entities import asked_of_sidecar, unknown_entities
from gateway.pii.patterns import PATTERNS
from gateway.policy.schema.guards import PiiGuard

EVERY = tuple(PATTERNS)


def guard(*entities: str, **more: Any) -> PiiGuard:
    return PiiGuard(kind="pii", entities=entities, **more)


@pytest.mark.parametrize(
    ("config", "spacy", "said"),
    [
        (guard(*EVERY), {}, []),
        (guard(*EVERY, checks=("fast",)), {}, []),
        (guard("US_BANK_NUMBER", "DATE_TIME", "DE_TAX_ID"), {}, []),
        (guard("US_BANK_NUMBER", checks=("fast",)), {}, ["US_BANK_NUMBER: only the model check"]),
        (guard("EMAIL"), {}, ["EMAIL: nobody here"]),
        (guard("PERSON", "LOCATION"), {"en": "any"}, []),
        (guard("PERSON"), {}, ["PERSON: it takes a spaCy model to find it in 'en'"]),
        (
            guard("PERSON", languages=("en", "de")),
            {"en": "any"},
            ["PERSON: it takes a spaCy model to find it in 'de'"],
        ),
    ],
)
def test_entities_that_nobody_can_find(config: PiiGuard, spacy: dict[str, str], said: list[str]) -> None:
    problems = unknown_entities(config.entities, config.checks, config.languages, spacy)
    assert len(problems) == len(said)
    assert all(problem.startswith(start) for problem, start in zip(problems, said, strict=True))


def asked(guard: PiiGuard) -> tuple[str, ...]:
    return asked_of_sidecar(guard.entities, guard.checks)


def test_what_needs_the_sidecar() -> None:
    assert asked(guard("EMAIL_ADDRESS")) == ()
    assert asked(guard("EMAIL_ADDRESS", "PERSON")) == ("PERSON",)
    assert asked(guard("EMAIL_ADDRESS", "PERSON", checks=("fast",))) == ()
    assert asked(guard("EMAIL_ADDRESS", checks=("model",))) == ("EMAIL_ADDRESS",)
