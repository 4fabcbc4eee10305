"""Credentials: providers' keys by their documented formats, private keys, tokens, passwords.

A format is tried only if its fixed part occurs in the text, and every format is bounded, so that the time is linear in
the text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.findings import Finding
from gateway.guards.scanners.escapes import unglued
from gateway.guards.scanners.normalised import Normalised
from gateway.guards.scanners.pii import apart
from gateway.guards.scanners.scanner import ORIGINS, Origin, Verdict
from gateway.policy.schema.guards import SecretsGuard
from gateway.types import Call


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """What a provider's key looks like."""

    label: str
    hint: str
    """A fixed part of every match; texts without it are not searched."""
    pattern: re.Pattern[str]
    """Its group ``secret`` is the credential, or else the whole match."""


def _format(label: str, hint: str, pattern: str) -> KeyFormat:
    return KeyFormat(label, hint, re.compile(rf"(?<![A-Za-z0-9_]){pattern}(?![A-Za-z0-9_])", re.ASCII))


KEY_FORMATS: tuple[KeyFormat, ...] = (
    _format("tollgate_key", "tg-", r"tg-[A-Za-z0-9_-]{43}"),
    _format("openai_key", "sk-", r"sk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,200}|[A-Za-z0-9]{32,64})"),
    _format("anthropic_key", "sk-ant-", r"sk-ant-[a-z]{2,10}\d\d-[A-Za-z0-9_-]{32,200}"),
    _format("openrouter_key", "sk-or-", r"sk-or-v\d-[0-9a-f]{64}"),
    _format("aws_access_key", "A", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    _format("github_token", "gh", r"gh[oprsu]_[A-Za-z0-9]{36,255}"),
    _format("github_token", "github_pat_", r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    _format("gitlab_token", "gl", r"gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)-[A-Za-z0-9_.=-]{20,100}"),
    _format("slack_token", "xox", r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,200}"),
    _format("slack_token", "xapp-", r"xapp-\d-[A-Z0-9]{8,20}-\d{8,20}-[a-f0-9]{32,64}"),
    _format(
        "slack_webhook",
        "hooks.slack.com",
        r"hooks\.slack\.com/(?:services|workflows)/T[A-Z0-9]{6,12}/[A-Z0-9]{6,14}/[A-Za-z0-9]{16,32}",
    ),
    _format("stripe_key", "_live_", r"(?:sk|rk)_live_[A-Za-z0-9]{16,247}"),
    _format("stripe_key", "_test_", r"(?:sk|rk)_test_[A-Za-z0-9]{16,247}"),
    _format("stripe_key", "whsec_", r"whsec_[A-Za-z0-9+/]{32,64}={0,2}"),
    _format("google_key", "AIza", r"AIza[A-Za-z0-9_-]{35}"),
    _format("google_token", "ya29.", r"ya29\.[A-Za-z0-9_-]{20,400}"),
    _format("google_client_secret", "GOCSPX-", r"GOCSPX-[A-Za-z0-9_-]{28}"),
    _format("azure_key", "AccountKey", r"AccountKey=(?P<secret>[A-Za-z0-9+/]{86}==)"),
    _format("azure_key", "SharedAccessKey", r"SharedAccessKey=(?P<secret>[A-Za-z0-9+/]{43}=)"),
    _format("azure_client_secret", "Q~", r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"),
    _format("huggingface_token", "hf_", r"hf_[A-Za-z0-9]{30,40}"),
    _format("huggingface_token", "api_org_", r"api_org_[A-Za-z0-9]{34}"),
    _format("npm_token", "npm_", r"npm_[A-Za-z0-9]{36}"),
    _format("pypi_token", "pypi-", r"pypi-AgE[A-Za-z0-9_-]{50,400}"),
    _format("twilio_key", "SK", r"SK[0-9a-f]{32}"),
    _format("sendgrid_key", "SG.", r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    _format("mailgun_key", "key-", r"key-[0-9a-f]{32}"),
    _format("mailchimp_key", "-us", r"[0-9a-f]{32}-us\d{1,2}"),
    _format("telegram_token", ":AA", r"\d{8,10}:AA[A-Za-z0-9_-]{33}"),
    _format("discord_token", ".", r"[MNO][A-Za-z0-9]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}"),
    _format("digitalocean_token", "_v1_", r"do[opr]_v1_[0-9a-f]{64}"),
    _format("databricks_token", "dapi", r"dapi[0-9a-f]{32}(?:-\d)?"),
    _format("shopify_token", "shp", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    _format("groq_key", "gsk_", r"gsk_[A-Za-z0-9]{40,60}"),
    _format("perplexity_key", "pplx-", r"pplx-[A-Za-z0-9]{40,60}"),
    _format("replicate_token", "r8_", r"r8_[A-Za-z0-9]{37}"),
    _format("xai_key", "xai-", r"xai-[A-Za-z0-9]{60,100}"),
    _format("linear_key", "lin_api_", r"lin_api_[A-Za-z0-9]{40}"),
    _format("notion_token", "ntn_", r"ntn_[A-Za-z0-9]{40,60}"),
    _format("vault_token", "hvs.", r"hvs\.[A-Za-z0-9_-]{24,200}"),
    _format("docker_token", "dckr_", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{27,40}"),
    _format("newrelic_key", "NRAK-", r"NRAK-[A-Z0-9]{27}"),
    _format("age_key", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}"),
    _format("jwt", "eyJ", r"eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,6000}(?:\.[A-Za-z0-9_-]{0,1000})?"),
    _format(
        "connection_string",
        "://",
        r"[a-z][a-z0-9+.-]{1,30}://[^\s:@/?#\"'<>`]{0,128}:(?P<secret>[^\s@/?#\"'<>`]{3,128})@(?:\[|[A-Za-z0-9_]{1,255})",
    )
)  # fmt: skip

_BEGIN, _END = "-----BEGIN ", "-----END "
_PRIVATE = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_ENDS = re.compile(r"-----END (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----")

_BREAK = r"(?:\r{0,3}\n|\\r?\\n|\\n)"
_LINE = re.compile(rf"[A-Za-z0-9+/]{{64}}(?:[A-Za-z0-9+/]{{6}})?{_BREAK}", re.ASCII)
"""Of base64, as PEM (RFC 7468) and OpenSSH break it."""
_REST = re.compile(rf"[A-Za-z0-9+/=]{{0,70}}(?:{_BREAK}|\\?\Z)", re.ASCII)
_FEWEST_LINES = 4

_ASSIGNED = re.compile(
    r"(?P<name>(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|api[_ -]?key|access[_ -]?key|auth[_ -]?key"
    r"|(?:private|encryption|signing|client|account|master|secret)[_ -]?(?:access[_ -]?)?key|credential|bearer)s?)"
    r"(?:[_-][A-Za-z0-9]{1,16}){0,2}"
    r"[\"'`\])*]{0,3}(?:\s{0,3}(?:=>|:=|==?|:|->)\s{0,3}|\s{1,3}(?:is\s{1,3}(?:set to\s{1,3})?)|(?<=[Bb]earer)\s)"
    r"(?:[A-Za-z]{0,2}(?=[\"'`]))?(?:(?P<quote>[\"'`])|[*\[(]{0,3})(?P<secret>[^\s\"'`<>,;(){}\[\]]{6,256})",
    re.IGNORECASE | re.ASCII,
)
_HINTS = ("pass", "pwd", "secret", "token", "key", "cred", "bearer")
_PLACEHOLDER_VALUE = re.compile(
    r"(?:x{4,}|\*{3,}|\.{3,}|\$|%[A-Za-z(]|\{|<|your|my[_-]|example|sample|dummy|changeme|change[_-]me|placeholder|redacted"
    r"|insert|replace|none\Z|null\Z|true\Z|false\Z|undefined|os\.|process\.|env|getenv|config|settings|self\.|this\.|https?:|test)",
    re.IGNORECASE,
)
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_$][A-Za-z_$]*(?:[.\-_/:][A-Za-z_$]+)*\Z")
_AWS_SECRET = re.compile(r"[A-Za-z0-9/+]{40}\Z")
_MARKS = frozenset("!@#$%^&*+=~?|\\")


class Secrets:
    """The ``Scanner`` of one ``secrets`` guard. The fast check decides everything."""

    origins: frozenset[Origin] = frozenset(ORIGINS)
    longest = 512
    """Keys and passwords. Private keys are longer: they are found from their first line on, or by their lines in a
    text that begins in the middle of one."""

    def __init__(self, config: SecretsGuard) -> None:
        self._config = config

    def quick(self, text: str, origin: Origin) -> Verdict:
        findings = list(Normalised(unglued(text)).find(find))
        if not findings:
            return Verdict()
        return Verdict(tuple(apart(findings, {})), max(finding.score for finding in findings))

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return [self.quick(text, origin) for text in texts]


def find(text: str) -> Iterator[Finding]:
    """All candidates, perhaps overlapping."""
    yield from _private_keys(text)
    yield from _middle_of_a_key(text)
    for form in KEY_FORMATS:
        if form.hint in text:
            for match in form.pattern.finditer(text):
                start, end = match.span("secret" if "secret" in form.pattern.groupindex else 0)
                if _is_plausible(form, text[start:end], match[0]):
                    yield Finding(form.label, start, end, 0.95)
    yield from _assigned(text)


_NO_PASSWORDS = frozenset({"password", "passwd", "pass", "pwd", "secret"})
_DOCUMENTED = "EXAMPLE"
"""In every key of Amazon's documentation, and by chance in one of 10 billion."""


def _is_plausible(form: KeyFormat, secret: str, match: str) -> bool:
    if form.label == "connection_string":
        user = match.partition("://")[2].partition(":")[0]
        # postgres:postgres@localhost is what tutorials write.
        return not _PLACEHOLDER_VALUE.match(secret) and secret.lower() not in _NO_PASSWORDS | {user.lower()}
    # Documentation writes sk-xxxxxxxx; a real key has many different signs.
    return len(set(secret)) >= 10 and _DOCUMENTED not in secret


def _private_keys(text: str) -> Iterator[Finding]:
    """From the first line on, up to the last one, or to the end of the text."""
    done = 0
    while (start := text.find(_BEGIN, done)) >= 0:
        begins = _PRIVATE.match(text, start)
        if not begins:
            done = start + len(_BEGIN)
            continue
        ends = _ENDS.search(text, begins.end())
        done = ends.end() if ends else len(text)
        yield Finding("private_key", start, done, 1.0)


def _middle_of_a_key(text: str) -> Iterator[Finding]:
    """The lines of base64 with which a text begins, unless they end as something else than a private key.

    Long texts are read piece by piece: one piece may hold neither the first line nor the last. Each line is a finding
    of its own, as pieces overlap and each keeps only what begins in its share.
    """
    first = _REST.match(text)
    if not first or not first.end() or first.end() == len(text):
        return
    lines = [first.span()]
    while line := _LINE.match(text, lines[-1][1]):
        lines.append(line.span())
    if len(lines) <= _FEWEST_LINES:
        return
    at = lines[-1][1]
    rest = _REST.match(text, at)
    if rest and rest.end() > at:
        lines.append(rest.span())
        at = rest.end()
    ends = _ENDS.match(text, at)
    if ends:
        lines.append(ends.span())
    elif text.startswith("-----", at):
        return
    for start, end in lines:
        yield Finding("private_key", start, end, 0.7)


def _assigned(text: str) -> Iterator[Finding]:
    """What is assigned to a password or token, and looks like one."""
    lowered = text.lower()
    for hint in _HINTS:
        if hint in lowered:
            break
    else:
        return
    for match in _ASSIGNED.finditer(text):
        secret = match["secret"].rstrip(".:!?*" if not match["quote"] else "")
        start = match.start("secret")
        kind = match["name"].lower()
        is_password = kind.startswith(("pass", "pwd"))
        if not _looks_secret(secret, password=is_password):
            continue
        if _AWS_SECRET.match(secret) and "aws" in lowered[max(0, start - 60) : start]:
            label = "aws_secret_key"
        else:
            label = (
                "password" if is_password else "token" if kind.startswith(("token", "bearer")) else "secret"
            )
        yield Finding(label, start, start + len(secret), 0.8)


def _looks_secret(value: str, *, password: bool) -> bool:
    """A password has letters and other characters; a token is long and random. Names, addresses and ids are neither."""
    if _PLACEHOLDER_VALUE.match(value) or _UUID.match(value) or _NAME.match(value) or _DOCUMENTED in value:
        return False
    letters = any(map(str.isalpha, value))
    digits = any(map(str.isdigit, value))
    if password:
        return letters and (digits or not _MARKS.isdisjoint(value)) and len(set(value)) >= 5
    return len(value) >= 16 and letters and digits and entropy(value) >= 3.0


def entropy(text: str) -> float:
    """Bits per character, by their frequencies (Shannon 1948)."""
    length = len(text)
    return -sum(count / length * math.log2(count / length) for count in Counter(text).values())
