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


def test_keys_of_amazons_are_hidden() -> None:
    shown = redacted(
        'aws: {access_key_id: AKIA1, secret_access_key: of-aws, session_token: "temporary"}\n'
        "files: {s3: {secret_access_key: '${S3_SECRET}'}}\n"
    )
    assert "of-aws" not in shown and "temporary" not in shown
    assert "AKIA1" in shown and "${S3_SECRET}" in shown
