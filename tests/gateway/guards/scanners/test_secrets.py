"""Secrets: each provider's form, what only looks like one, private keys in pieces, hostile texts."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.findings import Finding
from gateway.guards.scanners.secrets import Secrets, find
from gateway.identity.api_keys import make_key
from gateway.policy.schema.guards import SecretsGuard

SECRETS = Secrets(SecretsGuard(kind="secrets"))
ALPHABET = string.ascii_letters + string.digits


def made(length: int, alphabet: str = ALPHABET) -> str:
    """Looks random, is the same every time, and stands nowhere as a whole, as scanners of repositories would see it."""
    state, signs = 7 * length + 3, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        signs.append(alphabet[state // 65536 % len(alphabet)])
    return "".join(signs)


HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + "234567"

KEYS = [
    ("openai_key", "sk-" + made(48)),
    ("openai_key", "sk-proj-" + made(74) + "T3Blbk" + made(74)),
    ("anthropic_key", "sk-ant-api03-" + made(93) + "AA"),
    ("openrouter_key", "sk-or-v1-" + made(64, HEX)),
    ("aws_access_key", "AKIA" + made(16, UPPER)),
    ("github_token", "ghp_" + made(36)),
    ("github_token", "github_pat_" + made(22) + "_" + made(59)),
    ("gitlab_token", "glpat-" + made(20)),
    ("slack_token", "xoxb-" + made(12, string.digits) + "-" + made(24)),
    ("stripe_key", "sk_live_" + made(24)),
    ("google_key", "AIza" + made(35)),
    ("azure_client_secret", made(3) + "8Q~" + made(34)),
    ("huggingface_token", "hf_" + made(34)),
    ("npm_token", "npm_" + made(36)),
    ("pypi_token", "pypi-AgEIcHlwaS5vcmc" + made(80)),
    ("twilio_key", "SK" + made(32, HEX)),
    ("sendgrid_key", "SG." + made(22) + "." + made(43)),
    ("jwt", "eyJ" + made(33) + ".eyJ" + made(60) + "." + made(43)),
    ("telegram_token", "123456789:AA" + made(33)),
    ("databricks_token", "dapi" + made(32, HEX)),
]


def labels(text: str) -> list[tuple[str, str]]:
    return [(it.label, text[it.start : it.end]) for it in SECRETS.quick(text, "user").findings]


@pytest.mark.parametrize(("label", "key"), KEYS, ids=[f"{label}-{len(key)}" for label, key in KEYS])
@pytest.mark.parametrize("around", ["{}", "use {}, please", 'KEY="{}"', "({})", "x\n{}\ny"])
def test_providers_keys(label: str, key: str, around: str) -> None:
    assert labels(around.format(key)) == [(label, key)]


def test_our_own_keys() -> None:
    key = make_key()
    assert labels(f"Authorization: Bearer {key}") == [("tollgate_key", key)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password: hunter2!x", ("password", "hunter2!x")),
        ("DB_PASSWORD=s3cr3tP4ss", ("password", "s3cr3tP4ss")),
        ("my password is Tr0ub4dor&3.", ("password", "Tr0ub4dor&3")),
        ('"client_secret": "' + made(32) + '"', ("secret", made(32))),
        ("aws_secret_access_key = " + made(40), ("aws_secret_key", made(40))),
        ("Authorization: Bearer " + made(40), ("token", made(40))),
        ("X-Api-Key: " + made(32, HEX), ("secret", made(32, HEX))),
        ("postgres://app:pa55w0rd@db.internal:5432/x", ("connection_string", "pa55w0rd")),
        ("redis://:s0mething@cache:6379/0", ("connection_string", "s0mething")),
        ("AccountKey=" + made(86) + "==;", ("azure_key", made(86) + "==")),
    ],
    ids=lambda value: value[:18] if isinstance(value, str) else "",
)
def test_what_is_said_to_be_secret(text: str, expected: tuple[str, str]) -> None:
    assert labels(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "api_key = your-api-key-goes-here-123",
        "OPENAI_API_KEY=sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "token: ${GITHUB_TOKEN}",
        "password = os.environ['PASSWORD1']",
        "password: ********",
        "password=<your password1>",
        "the password is required",
        "the password is incorrect, and 3 more tries are left",
        "I forgot my password yesterday at 10:45",
        "token=123e4567-e89b-12d3-a456-426614174000",
        "def tokenize(token: str) -> list[str]:",
        "max_tokens: 4096, secret_santa: wednesday, key: value",
        "the secret is to keep calm and carry on",
        "https://example.com/commit/" + made(40, HEX),
        "sha256:" + made(64, HEX),
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "postgres://user:password@localhost/db",
        "https://user:${PASSWORD}@example.com/",
        "risk-assessment-of-the-whole-project-in-two-thousand-words",
        "ask-" + "a" * 50,
        "https://example.com:8080/a@b",
    ],
    ids=lambda text: text[:30],
)
def test_what_only_looks_like_it(text: str) -> None:
    assert labels(text) == []


BODY = "\n".join(made(64, ALPHABET + "+/") for _ in range(26)) + "\n" + made(40) + "=="
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
def test_private_keys_up_to_their_end(kind: str) -> None:
    key = PEM.replace("RSA ", kind)
    assert labels(f"Here:\n{key}\nThank you") == [("private_key", key)]


def test_a_private_key_without_an_end() -> None:
    cut = PEM[:300]
    assert labels("Here:\n" + cut) == [("private_key", cut)]


def covered(findings: list[Finding]) -> set[int]:
    return {place for it in findings for place in range(it.start, it.end)}


@pytest.mark.parametrize("escaped", [False, True])
def test_the_middle_of_a_private_key(escaped: bool) -> None:
    key = PEM.replace("\n", "\\n") if escaped else PEM
    for start in range(40, 1000, 7):
        piece = key[start : start + 600]
        assert covered(list(find(piece))) == set(range(len(piece)))
    ending = key[-700:]
    assert covered(list(find(ending))) == set(range(700))


def test_the_middle_of_a_certificate() -> None:
    certificate = PEM.replace("RSA PRIVATE KEY", "CERTIFICATE")
    assert labels(certificate[-700:]) == []


@given(st.text(max_size=300))
def test_spans_are_in_order_and_within_any_text(text: str) -> None:
    end = 0
    for finding in SECRETS.quick(text, "user").findings:
        assert end <= finding.start < finding.end <= len(text)
        end = finding.end


PARTS = [
    "password",
    " is ",
    "=",
    ": ",
    "sk-",
    "eyJ",
    ".",
    made(40),
    '"',
    "-----BEGIN ",
    "PRIVATE KEY-----",
    "://",
    "@",
    "\n",
]


@given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
def test_spans_of_the_right_parts(text: str) -> None:
    end = 0
    for finding in SECRETS.quick(text, "user").findings:
        assert end <= finding.start < finding.end <= len(text)
        end = finding.end


@pytest.mark.parametrize(
    "part",
    ["a", " ", "password ", "password=", "a://", "a://a:b", "eyJ", "eyJ" + "a" * 20 + ".", "-----BEGIN ", "sk-",
     "xoxb-", "token_", "-----BEGIN PRIVATE KEY-----", "M" * 24 + ".", "key" + " " * 3, made(64) + "\n",
     "secret is ", "bearer "],
)  # fmt: skip
def test_time_grows_with_the_text(part: str) -> None:
    def seconds(length: int) -> float:
        text = (part * length)[:length]
        started = time.process_time()
        for _ in find(text):
            pass
        return time.process_time() - started

    small = min(seconds(10_000) for _ in range(2))
    assert seconds(40_000) < 8 * small + 0.1


def test_invisible_signs_hide_no_key() -> None:
    key = "AKIA" + "Q3EGR7YT\u200bLPWX2MNB"
    (finding,) = SECRETS.quick(f"key {key}!", "answer").findings
    assert (finding.start, finding.end) == (4, 4 + len(key))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://postgres:postgres@db:5432/app",
        "AKIAIOSFODNN7EXAMPLE",
        "aws_secret = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    ],
)
def test_what_tutorials_write_is_no_secret(text: str) -> None:
    assert not SECRETS.quick(text, "answer").findings
