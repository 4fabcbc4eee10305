"""What an operator lets pass, and what else an operator looks for."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.guards.scanners.pii import Pii
from gateway.pii.patterns.card import TEST_CARDS
from gateway.pii.patterns.check_digits import luhn
from gateway.policy.rules.subject import Draft
from gateway.policy.rules.table import errors
from gateway.policy.schema.guards import PiiGuard

EVERY = ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IP_ADDRESS", "URL")


def said(text: str, **more: Any) -> list[tuple[str, str]]:
    guard = PiiGuard(kind="pii", **{"entities": EVERY, "checks": ("fast",), **more})
    verdict = Pii(guard, None).quick(text, "user")
    assert verdict is not None
    return [(it.label, text[it.start : it.end]) for it in verdict.findings]


@pytest.mark.parametrize(
    ("allow", "passes", "stays"),
    [
        ({"domains": ["acme.example"]}, "ann@acme.example", "ann@notacme.example"),
        ({"domains": ["acme.example"]}, "ann@Mail.ACME.example", "ann@acme.example.org"),
        ({"domains": ["acme.example"]}, "https://acme.example:8443/x?y", "https://acme.example@evil.example/"),
        ({"domains": ["acme.example"]}, "ａｎｎ＠ａｃｍｅ．example", "ann@acme.org"),
        ({"domains": ["localhost"]}, "http://localhost:3000/", "http://localhost.evil.example/"),
        ({"networks": ["127.0.0.0/8"]}, "ping 127.8.0.1", "ping 128.8.0.1"),
        ({"networks": ["127.0.0.0/8"]}, "http://127.0.0.1:80/", "http://10.0.0.1:80/"),
        ({"networks": ["fd00::/8", "10.0.0.0/8"]}, "at fd12:3456:789a::1", "at 2001:db8:1:2:3::1"),
        ({"test_cards": True}, "card 4242-4242-4242-4242", "card 4556 7375 8689 9855"),
        ({"test_cards": True}, "card 3782 822463 10005", "card 4242 4242 4242 4242 and 4556 7375 8689 9855"),
        ({"texts": ["+49 30 1234567"]}, "call +49-30-1234567", "call +49-30-1234568"),
    ],
)  # fmt: skip
def test_what_passes_and_what_does_not(allow: dict[str, Any], passes: str, stays: str) -> None:
    assert said(passes) and not said(passes, allow=allow)
    assert said(stays, allow=allow)


def test_an_address_within_an_own_url_is_still_found() -> None:
    text = "https://acme.example/?to=ann@gmail.com"
    assert said(text, allow={"domains": ["acme.example"]}) == [("EMAIL_ADDRESS", "ann@gmail.com")]


def test_test_cards_are_cards() -> None:
    assert all(luhn(number) for number in TEST_CARDS)


def test_own_patterns_are_found_however_they_are_written() -> None:
    own = {"EMPLOYEE_ID": r"\bE-\d{6}\b", "CASE": "Fall [0-9]{1,4}"}
    assert said("Ask E-471174, Ｅ‑４７１１７５.", patterns=own) == [
        ("EMPLOYEE_ID", "E-471174"),
        ("EMPLOYEE_ID", "Ｅ‑４７１１７５"),
    ]
    assert said("Fall\u00a012, x@y.org", patterns=own) == [
        ("CASE", "Fall\u00a012"),
        ("EMAIL_ADDRESS", "x@y.org"),
    ]


def test_a_stream_keeps_a_window_for_own_patterns() -> None:
    guard = PiiGuard(kind="pii", entities=["US_SSN"], patterns={"X": "x{1,90}"}, window=100, checks=("fast",))
    assert Pii(guard, None).longest >= 100


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        ({"CASE": r"(a+)+b"}, "may take too long"),
        ({"US_SSN": r"x\d{3}"}, "another label"),
        ({f"P{number}": rf"[a-z]{{200}}{number}" for number in range(20)}, "may take too long"),
    ],
)
def test_what_a_policy_may_not_say(patterns: dict[str, str], problem: str) -> None:
    found = list(errors(Draft({"guards": {"pii": {"patterns": patterns}}})))
    assert len(found) == 1 and problem in str(found[0])


def test_what_a_policy_may_say() -> None:
    allow = {"domains": ["x.org"], "networks": ["::1"], "texts": ["x"], "test_cards": True}
    content = {"guards": {"pii": {"patterns": {"CASE": r"case-\d{1,9}"}, "allow": allow}}}
    assert not list(errors(Draft(content)))
