"""What is sent to an HTTP server that judges texts, and what it answers: our own format, and those of others.

``verdicts`` is ours, documented in docs/guards.md. ``litellm`` is LiteLLM's generic guardrail API
(https://docs.litellm.ai/docs/adding_provider/generic_guardrail_api). In both the server may say what is to be done;
in those of ``webhook_services`` it only says what it found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gateway.findings import Finding, Remedy
from gateway.guards.scanners.scanner import Origin
from gateway.policy.schema.webhook_guard import WebhookGuard
from gateway.types import Call, Json

MAX_FINDINGS = 1_000
"""In one text."""
_T = TypeVar("_T")
_UNFIT = re.compile(r"[^A-Za-z0-9_./: -]")

Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Label = Annotated[str, Field(min_length=1, max_length=128)]


@dataclass(frozen=True, slots=True)
class Question:
    """Texts of one origin for a server."""

    config: WebhookGuard
    name: str
    """The guard's."""
    texts: Sequence[str]
    origin: Origin
    call: Call | None


@dataclass(frozen=True, slots=True)
class Format:
    """How to ask, and how to read the answer."""

    body: Callable[[Question], Mapping[str, Json]]
    read: Callable[[Sequence[str], bytes], list[list[Finding]]]
    """The findings of each text, whatever their score. Raises ``pydantic.ValidationError``."""
    takes_many: bool = True
    """Whether one request may ask about several texts."""


class Answer(BaseModel):
    """What a server sends is not converted: a number in quotes is a mistake of its. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True)


class _Found(Answer):
    label: Label
    start: Annotated[int, Field(ge=0)] = 0
    end: int | None = None
    score: Score = 1.0


class _Verdict(Answer):
    action: Literal["allow", "flag", "block", "redact", "mask"] | None = None
    findings: Annotated[list[_Found], Field(max_length=MAX_FINDINGS)] = []
    text: str | None = None
    label: Label = "refused"


class _Verdicts(Answer):
    verdicts: list[_Verdict]


class _Intervention(Answer):
    action: Literal["NONE", "BLOCKED", "GUARDRAIL_INTERVENED"]
    texts: list[str] | None = None


def _question(asked: Question) -> Mapping[str, Json]:
    call, config = asked.call, asked.config
    return {
        **config.params,
        "guard": asked.name,
        "direction": "output" if asked.origin == "answer" else "input",
        "request_id": call.request_id if call else None,
        "tenant": call.principal.tenant if call else None,
        "key_id": call.principal.key_id if call else None,
        "model": call.model if call else None,
        "route": call.route if call else None,
        "masked": config.texts == "masked",
        "texts": [{"text": text, "origin": asked.origin} for text in asked.texts],
    }


def _verdicts(texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    verdicts = _Verdicts.model_validate_json(body).verdicts
    return [_of(verdict, text) for verdict, text in same_number(verdicts, texts)]


def _of(verdict: _Verdict, text: str) -> list[Finding]:
    action = verdict.action
    if action == "allow":
        return []
    if verdict.text is not None and action in (None, "redact", "mask"):
        changed = difference(text, verdict.text, verdict.findings[0].label if verdict.findings else "changed")
        return [changed] if changed is not None else []
    remedy = Remedy(action) if action is not None else None
    found = [
        Finding(label(one.label), *within(one.start, one.end, text), one.score, remedy)
        for one in verdict.findings
    ]
    if not found and remedy is not None:
        return [Finding(label(verdict.label), 0, len(text), 1.0, remedy)]
    return found


def _litellm(asked: Question) -> Mapping[str, Json]:
    call = asked.call
    principal = call.principal if call else None
    return {
        "texts": list(asked.texts),
        "request_data": {
            "user_api_key_alias": principal.key_id if principal else None,
            "user_api_key_team_id": principal.tenant if principal else None,
        },
        "input_type": "response" if asked.origin == "answer" else "request",
        "litellm_call_id": call.request_id if call else None,
        "additional_provider_specific_params": asked.config.params,
    }


def _intervention(texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    # One text at a time, so that it is known which is meant. Its reason may quote the text, and is not repeated.
    answer = _Intervention.model_validate_json(body)
    if answer.action == "NONE" or (answer.action == "GUARDRAIL_INTERVENED" and answer.texts is None):
        return [[] for _ in texts]
    if answer.action == "BLOCKED":
        return [[Finding("refused", 0, len(text), 1.0, Remedy("block"))] for text in texts]
    return [
        [changed] if (changed := difference(text, other, "changed")) is not None else []
        for other, text in same_number(answer.texts or [], texts)
    ]


class WrongNumber(ValueError):
    """An answer about more or fewer texts than were asked about."""


def same_number(answers: Sequence[_T], texts: Sequence[str]) -> list[tuple[_T, str]]:
    """Each answer with its text. Raises ``WrongNumber``."""
    if len(answers) != len(texts):
        raise WrongNumber(f"it was asked of {len(texts)} texts, and answered of {len(answers)}")
    return list(zip(answers, texts, strict=True))


def within(start: int, end: int | None, text: str) -> tuple[int, int]:
    """A span as far as it lies in ``text``, which ends there where ``end`` is None.

    All of it for a span that has nothing of it: a server that counts otherwise has found something all the same.
    """
    behind = len(text) if end is None else min(end, len(text))
    return (start, behind) if 0 <= start < behind else (0, len(text))


def label(text: str) -> str:
    """As receipts and messages may show it."""
    return _UNFIT.sub("_", text)[:64]


def difference(text: str, other: str, name: str) -> Finding | None:
    """The part of ``text`` that is another in ``other``, to be replaced by that; None where they are the same."""
    if text == other:
        return None
    start = _alike(text, other)
    rest = min(len(text), len(other)) - start
    behind = min(rest, _alike(reversed(text), reversed(other)))
    if start == len(text) - behind:  # something was only put in: a character beside it is replaced with it
        if start:
            start -= 1
        else:
            behind -= 1
    return Finding(
        label(name), start, len(text) - behind, 1.0, Remedy("redact", other[start : len(other) - behind])
    )


def _alike(one: Iterable[str], other: Iterable[str]) -> int:
    """Characters at the beginning that both have."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


OWN: Mapping[str, Format] = {
    "verdicts": Format(_question, _verdicts),
    "litellm": Format(_litellm, _intervention, takes_many=False),
}
