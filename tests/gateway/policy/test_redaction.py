"""A policy that is shown has no secrets in it."""

from __future__ import annotations

from gateway.policy.redaction import redacted, without_values


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


def test_hashes_of_keys_and_what_stands_in_comments_and_queries_is_hidden() -> None:
    shown = redacted(
        "# api_key: sk-of-last-year\nrevoked_keys: [aaaa1111]\n"
        "keys:\n  - {id: a, sha256: bbbb2222, previous: {sha256: cccc3333, until: 2027-01-01}}\n"
        "alerts: {url: 'https://e.test/hook?team=a&access_token=hunter2&x=1'}  # old password = hunter1\n"
        "other: 'https://e.test/?api_key=${KEY}'\n"
    )
    for secret in ("of-last-year", "aaaa1111", "bbbb2222", "cccc3333", "hunter"):
        assert secret not in shown
    assert "id: a" in shown and "team=a" in shown and "&x=1" in shown and "?api_key=${KEY}" in shown


def test_values_of_variables_leave_nothing_of_them_behind() -> None:
    long, odd = "Zq9-" * 60, 'it\'s "x"\n\\'
    assert without_values(f"no backend is named '{long}'", {"KEY": long}) == "no backend is named '${KEY}'"
    assert without_values(f"{odd!r} is no address", {"KEY": odd}) == "'${KEY}' is no address"
