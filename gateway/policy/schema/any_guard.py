"""What every guard has: when it is asked, of whom, and what becomes of what it finds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from gateway.policy.schema.values import Form, Frozen, Text, Timeout

Direction = Literal["input", "output"]
Action = Literal["block", "redact", "mask", "local", "flag"]
Check = Literal["fast", "model"]
Source = Literal["system", "user", "assistant", "tool", "definition", "identifier"]
"""Where a text of a request comes from, see ``gateway.guards.scanners.scanner.Origin``."""
Route = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1beta/models",
    "/v1/responses",
    "/v1/audio",
    "/v1/images",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
]
"""With what is below it, such as ``/v1/messages/count_tokens``."""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return text


def _language(text: str) -> str:
    if not re.fullmatch("[a-z]{2}", text):
        raise ValueError(f"'{text[:40]}' should be a language's two letters, such as en or de")
    return text


def _label(text: str) -> str:
    if not re.fullmatch("[A-Z][A-Z0-9_]{0,63}", text):
        raise ValueError(f"'{text[:40]}' should be a label in capitals, such as EMPLOYEE_ID")
    return text


def _domain(text: str) -> str:
    if not re.fullmatch(r"[^\s/@:*]+", text) or text.startswith("."):
        raise ValueError(
            f"'{text[:40]}' should be a domain, such as example.com; those under it are included"
        )
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Label = Annotated[str, AfterValidator(_label), Form("^[A-Z][A-Z0-9_]{0,63}$")]
Domain = Annotated[str, AfterValidator(_domain)]
Language = Annotated[str, AfterValidator(_language), Form("^[a-z]{2}$")]


class Classifier(Frozen):
    """A text classification model of the transformers library, instead of the bundled one."""

    model: Text
    """A local folder, or a hub id."""
    unsafe: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Its labels that count; their probabilities are added up."""


def asked_of(checks: tuple[Check, ...], classifier: Classifier | None) -> None:
    if classifier is not None and "model" not in checks:
        raise ValueError("the classifier is never asked with 'checks: [fast]'; write 'checks: [fast, model]'")


class AnyGuard(Frozen):
    """What every kind of guard has."""

    actions: ClassVar[Mapping[Direction, tuple[Action, ...]]] = {
        "input": ("block", "flag"),
        "output": ("block", "flag"),
    }
    on: Annotated[tuple[Direction, ...], Field(min_length=1)] = ("input",)
    action: Action = "block"
    tenants: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Glob patterns of the tenants it looks after."""
    keys: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Glob patterns of the ids of their keys."""
    models: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Glob patterns of the models that are asked for, by their names in ``models``."""
    routes: Annotated[tuple[Route, ...], Field(min_length=1)] | None = None
    """None: all."""
    message: Text | None = None
    """What a caller is told who is refused; None: the guard's name, and the labels of what it found."""
    origins: Annotated[tuple[Source, ...], Field(min_length=1)] | None = None
    """Which texts of requests it scans; None: those that its kind is made for."""
    stream: Literal["hold", "windowed", "optimistic"] = "windowed"
    """What a client sees of a streamed answer before the guard has judged it. With ``flag``: all of it, always."""
    window: Annotated[int, Field(strict=True, ge=16, le=100_000)] = 256
    """Characters that ``windowed`` holds back, and by which successive scans overlap."""
    interval: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 64
    """New characters after which the answer is scanned again."""
    on_error: Literal["block", "allow"] = "block"
    """When a text could not be judged. With ``flag`` it is noted, and passes."""
    timeout: Timeout = 2.0
    """For one judgement."""

    @property
    def is_scoped(self) -> bool:
        """Whether it matters to more than the tenant which key asks which model where."""
        return self.keys != ("*",) or self.models != ("*",) or self.routes is not None

    def looks_after(self, tenant: str, *, key_id: str, model: str, route: str) -> bool:
        """Whether it scans what ``key_id`` of ``tenant`` asks of ``model`` at the path ``route``."""
        return (
            any(fnmatchcase(tenant, pattern) for pattern in self.tenants)
            and any(fnmatchcase(key_id, pattern) for pattern in self.keys)
            and any(fnmatchcase(model, pattern) for pattern in self.models)
            and (self.routes is None or any(f"{route}/".startswith(f"{own}/") for own in self.routes))
        )

    @property
    def refuses_unjudged(self) -> bool:
        """Whether a text that could not be judged goes no further. What only flags never stops anything."""
        return self.on_error == "block" and self.action != "flag"

    @model_validator(mode="after")
    def _possible(self) -> AnyGuard:
        for direction in self.on:
            possible = self.actions[direction]
            if self.action not in possible:
                raise ValueError(
                    f"'action: {self.action}' cannot be taken on {direction}; write one of {', '.join(possible)}"
                )
        if "output" in self.on and self.action in ("redact", "mask") and self.stream == "optimistic":
            raise ValueError(
                f"'action: {self.action}' cannot change what has been sent; write 'stream: windowed' or 'stream: hold'"
            )
        return self


EVERY_ACTION: Mapping[Direction, tuple[Action, ...]] = {
    "input": ("block", "redact", "mask", "local", "flag"),
    "output": ("block", "redact", "mask", "flag"),
}
