"""Who finds which entity."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.pii.entities import asked_of_sidecar, expanded, unknown_entities
from gateway.pii.patterns import PATTERNS
from gateway.pii.recognizers import RECOGNIZERS
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
        (guard("PERSON", "ADDRESS"), {}, []),
        (guard("PERSON", languages=("en", "de")), {"en": "any"}, []),
        (guard("NRP"), {}, ["NRP: it takes a spaCy model to find it in 'en'"]),
        (
            guard("NRP", languages=("en", "de")),
            {"en": "any"},
            ["NRP: it takes a spaCy model to find it in 'de'"],
        ),
        (guard("PERSON", checks=("fast",)), {}, ["PERSON: only the model check"]),
    ],
)
def test_entities_that_nobody_can_find(config: PiiGuard, spacy: dict[str, str], said: list[str]) -> None:
    problems = unknown_entities(config.entities, config.checks, config.languages, spacy)
    assert len(problems) == len(said)
    assert all(problem.startswith(start) for problem, start in zip(problems, said, strict=True))


def test_the_tagger_needs_its_embedder() -> None:
    problems = unknown_entities(("PERSON", "ADDRESS"), ("model",), ("en",), (), tagger=False)
    assert [problem.partition(":")[0] for problem in problems] == ["PERSON", "ADDRESS"]
    assert not unknown_entities(("PERSON",), ("model",), ("en",), ("en",), tagger=False)


def test_a_group_is_what_its_checks_can_find() -> None:
    every = expanded(("US_SSN", "NATIONAL_ID"), ("fast",))
    assert every[0] == "US_SSN" and len(set(every)) == len(every) and {"FR_NIR", "PL_PESEL"} <= set(every)
    assert set(expanded(("NATIONAL_ID",), ("model",))) <= set(RECOGNIZERS)


def asked(guard: PiiGuard) -> tuple[str, ...]:
    return asked_of_sidecar(guard.entities, guard.checks)


def test_what_needs_the_sidecar() -> None:
    assert asked(guard("EMAIL_ADDRESS")) == ()
    assert asked(guard("EMAIL_ADDRESS", "PERSON")) == ("PERSON",)
    assert asked(guard("EMAIL_ADDRESS", "PERSON", checks=("fast",))) == ()
    assert asked(guard("EMAIL_ADDRESS", checks=("model",))) == ("EMAIL_ADDRESS",)
