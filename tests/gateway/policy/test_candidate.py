"""Whoever proposes a policy learns what is wrong with it, and nothing of what variables hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.candidate import UNTOLD, problems_of, stand_in
from gateway.policy.files import PolicyFile

SECRET = "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2yZ3"
WEIRD = 'it\'s a "s3c\\ret" välue\n2nd'
ENV = {
    "KEY": SECRET,
    "LONG": "Zq9" + "AbC7" * 60,
    "WEIRD": WEIRD,
    "WEIGHT": "3",
    "URL": "https://e.test:8443/v1",
}
BASE = """
backends: {b: {kind: fake, script: [{reply: x}]}}
models: {m: {targets: [{backend: b, model: x}]}}
"""
PLACES = (
    "version: %s",
    "version: 1\nprices: {%s: {input: 1, output: 1}}",
    "version: 1\ntrusted_proxies: [%s]",
    "version: 1\ntenants: {t: {tier: %s}}",
    "version: 1\nkeys: [{id: k, sha256: %s, models: [%s], allow_ips: [%s]}]",
    "version: 1\nguards: {pii: {on: [input], languages: [%s]}}",
    "version: 1\nguards: {g: {kind: %s}}",
    "version: 1\n%s: 1",
)


def told(text: str) -> tuple[bool, list[str]]:
    valid, found = problems_of([PolicyFile(Path("gateway.yaml"), text.encode())], ENV)
    return valid, [one.message for one in found]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["KEY", "LONG", "WEIRD"])
@pytest.mark.parametrize("form", ['"${%s}"', '"x-${%s}-y"', '"\\x24{%s}"', '"x\\x24{%s}"'])
def test_no_part_of_a_value_is_told(place: str, name: str, form: str) -> None:
    _, messages = told(place.replace("%s", form % name) + BASE)
    assert messages
    value = ENV[name]
    for message in messages:
        assert not any(value[at : at + 6] in message for at in range(len(value) - 5)), message


def test_what_has_nothing_to_do_with_a_value_is_said_as_ever() -> None:
    _, messages = told('version: 1\nretry: 5\ndrained: ["x ${KEY}"]' + BASE)
    assert any(message.startswith("retry: ") for message in messages)
    assert UNTOLD in messages
    _, messages = told('version: 1\nkeys: [{id: k, sha256: %s, models: ["${KEY}"]}]' % ("a" * 64) + BASE)
    assert messages == ["keys[0].models[0]: no model is named '${KEY}'; there is 'm'"]


def test_numbers_and_addresses_from_variables_are_no_mistakes() -> None:
    text = """
version: 1
backends: {b: {kind: openai, base_url: "${URL}", api_key: "${KEY}"}}
models: {m: {targets: [{backend: b, model: x, weight: "${WEIGHT}"}]}}
"""
    assert told(text)[0]


def test_another_value_has_the_form_of_the_first() -> None:
    assert stand_in("postgresql://me:Pw7@db.test:5432/x") == "postgresql://xx:Xx1@xx.xxxx:1111/x"
    assert [stand_in(one) for one in ("true", "250ms", "0.5", "sk-Ab9")] == ["true", "250ms", "1.1", "xx-Xx1"]
