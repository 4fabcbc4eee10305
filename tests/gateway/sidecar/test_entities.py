"""Presidio as the sidecar has it: offline, only what is asked for, names by a spaCy model."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gateway.pii.recognizers import NAMES, RECOGNIZERS

if importlib.util.find_spec("presidio_analyzer") is None:
    pytest.skip("presidio-analyzer is not installed", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

EVERY = sorted(RECOGNIZERS)


@pytest.fixture(scope="module")
def make() -> Callable[..., Any]:
    from gateway.sidecar.models.entities import Entities

    return Entities


@pytest.fixture(scope="module")
def entities(make: Callable[..., Any]) -> Any:
    return make({})


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise AssertionError("something went out to the network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def found(entities: Any, text: str, *names: str, language: str = "en") -> set[tuple[str, str]]:
    return {
        (it.label, text[it.start : it.end]) for it in entities.find(text, language, names) if it.score >= 0.5
    }


@pytest.mark.usefixtures("no_network")
def test_every_recognizer_without_a_network(make: Callable[..., Any]) -> None:
    text = "ann@example.org 212-555-0143 4111111111111111 https://example.org 10.1.2.3 2024-03-15"
    labels = {it.label for it in make({}).find(text, "en", EVERY)}
    assert {"EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "URL", "IP_ADDRESS", "DATE_TIME"} <= labels
    assert labels <= set(EVERY)


def test_what_is_not_asked_for_is_neither_found_nor_loaded(entities: Any) -> None:
    text = "ann@example.org, NHS number 943 476 5919"
    assert found(entities, text, "UK_NHS") == {("UK_NHS", "943 476 5919")}


def test_words_around_count(entities: Any) -> None:
    assert found(entities, "my driver license is A1234567", "US_DRIVER_LICENSE")
    assert not found(entities, "my favourite tune is A1234567", "US_DRIVER_LICENSE")


def test_words_within_words_do_not_count(entities: Any) -> None:
    """ "lic" is a context word of Presidio's."""
    assert not found(entities, "a duplicate is A1234567", "US_DRIVER_LICENSE")


@pytest.mark.parametrize("language", ["de", "ja", "en", "fr", "zh"])
def test_languages(entities: Any, language: str) -> None:
    assert found(entities, "x 943 476 5919", "UK_NHS", language=language)


def test_names_need_a_model(entities: Any) -> None:
    with pytest.raises(ValueError, match=r"PERSON .* no spaCy model is named for 'en'"):
        entities.find("Ann", "en", ["PERSON"])
    with pytest.raises(ValueError, match="no such entity"):
        entities.find("Ann", "en", ["NOBODY"])


def test_a_model_that_is_not_installed(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="python -m spacy download en_core_web_nothing"):
        make({"en": "en_core_web_nothing"})


def test_names_by_a_model(make: Callable[..., Any], tmp_path: Path) -> None:
    import spacy

    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns(
        [{"label": "PERSON", "pattern": "Ann"}, {"label": "GPE", "pattern": "Oslo"},
         {"label": "MONEY", "pattern": "five crowns"}]
    )  # fmt: skip
    pipeline.to_disk(tmp_path / "names")
    entities = make({"en": str(tmp_path / "names")})
    text = "Ann paid five crowns in Oslo on 2024-03-15"
    assert found(entities, text, *NAMES, "DATE_TIME") == {
        ("PERSON", "Ann"),
        ("LOCATION", "Oslo"),
        ("DATE_TIME", "2024-03-15"),
    }
    assert found(entities, text, "PERSON") == {("PERSON", "Ann")}


def test_empty(entities: Any) -> None:
    assert entities.find("", "en", ["UK_NHS"]) == []
    assert entities.find("text", "en", []) == []


def test_the_table_holds_what_presidio_has() -> None:
    from presidio_analyzer import predefined_recognizers

    for entity, name in RECOGNIZERS.items():
        assert getattr(predefined_recognizers, name)(supported_language="en").supported_entities == [entity]
