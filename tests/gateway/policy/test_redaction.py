"""A policy that is shown has no secrets in it."""

from __future__ import annotations

from gateway.policy.redaction import redacted


def test_keys_and_the_values_of_headers_are_hidden_and_variables_are_not() -> None:
    shown = redacted(
        "guards:\n  webhook:\n    url: http://guard.test/check\n    api_key: sk-guard\n"
        "    headers: {x-token: hunter2, x-team: '${TEAM}'}\ncors: {allow_headers: [authorization]}\n"
    )
    assert "sk-guard" not in shown and "hunter2" not in shown
    assert "${TEAM}" in shown and "x-token" in shown and "[authorization]" in shown
