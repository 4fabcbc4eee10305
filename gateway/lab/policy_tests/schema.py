"""What a test file may hold, as frozen types. ``docs/lab.md`` is its reference."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.policy.schema.values import Count, Duration, Frozen, Moment, Name, Share, Text

Status = Annotated[int, Field(strict=True, ge=100, le=599)]
Tokens = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Dollars = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]


def _listed(value: Any) -> Any:
    """One is a list of one."""
    return value if value is None or isinstance(value, list) else [value]


Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed), Field(min_length=1)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_listed), Field(min_length=1)]


class Answer(Frozen):
    """How a backend answers a request that fits it."""

    match: Text | None = None
    """The last user message has this text."""
    model: Text | None = None
    """The target's model is this one."""
    times: Count | None = None
    """After so many the next answer of the list is given; without it, it is the last word."""
    reply: str = "Hello."
    status: Status = 200
    message: Text | None = None
    """Of an error."""
    code: Text | None = None
    """Of an error, in its body."""
    retry_after: Duration | None = None
    unreachable: bool = Field(default=False, strict=True)
    """Nobody listens at its address."""
    hangs: bool = Field(default=False, strict=True)
    """It takes the request, and never says a word."""
    delay: Duration = 0.0
    """Before the first token."""
    token_delay: Duration = 0.0
    """Between two."""
    cut_after: Annotated[int, Field(strict=True, ge=0)] | None = None
    """It breaks off after so many words."""
    finish: Text = "stop"
    mean_logprob: Annotated[float, Field(strict=True, le=0, allow_inf_nan=False)] | None = None
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens = 0


Answers = Annotated[tuple[Answer, ...], BeforeValidator(_listed), Field(min_length=1)]
Backends = dict[Name, Answers]


class Scores(Frozen):
    """What a small model says of texts with ``match``."""

    match: Text
    score: Share = 0.99
    label: Text | None = None


class Webhook(Frozen):
    """How the server of a guard answers."""

    status: Status = 200
    body: Any = None
    delay: Duration = 0.0


class Models(Frozen):
    """The verdicts of the sidecar's models; of texts that are not named: nothing."""

    injection: tuple[Scores, ...] = ()
    toxicity: tuple[Scores, ...] = ()
    complexity: tuple[Scores, ...] = ()
    classifier: tuple[Scores, ...] = ()
    entities: tuple[Scores, ...] = ()
    alike: tuple[Annotated[tuple[Text, ...], Field(min_length=2)], ...] = ()
    """Questions that mean the same to the semantic cache."""


class Caller(Frozen):
    """Somebody who is in no file: a key of the test's own."""

    id: Name = "test"
    tenant: Name = "default"
    tier: Name | None = None
    models: tuple[Text, ...] = ("*",)
    residency: tuple[Name, ...] = ()


class Expect(Frozen):
    """What is to come of a request. What is not named may be anything."""

    status: Annotated[tuple[Status, ...], BeforeValidator(_listed), Field(min_length=1)] | None = None
    error: Text | None = None
    """The error's code."""
    model: Names | None = None
    """Who answered, as ``x-tollgate-model`` has it."""
    backend: Names | None = None
    target: Texts | None = None
    """The backend's own name of the model."""
    why: Text | None = None
    """``primary``, ``fallback``, ``downgrade``, ``spill_over``, ``larger_context``."""
    experiment: Text | None = None
    """That it is part of, or ``none``."""
    arm: Text | None = None
    """Of that experiment."""
    tier: Name | None = None
    attempts: Annotated[int, Field(strict=True, ge=0)] | None = None
    cache: Literal["exact", "semantic", "miss", "bypass", "none"] | None = None
    guards: dict[
        Name, Literal["pass", "block", "redact", "mask", "local", "flag", "support", "not_asked"]
    ] = Field(default={})
    cost_at_most: Dollars | None = None
    cost_at_least: Dollars | None = None
    waits_at_most: Duration | None = None
    waits_at_least: Duration | None = None
    """For a place at its backend."""
    takes_at_most: Duration | None = None
    takes_at_least: Duration | None = None
    says: Texts | None = None
    """The answer has each of these texts."""
    says_not: Texts | None = None
    sees: Texts | None = None
    """The backend that was asked last has been sent each of these texts."""
    sees_not: Texts | None = None
    headers: dict[Text, Text] = Field(default={})
    """Of the answer, with ``*`` for any text."""
    decided_by: Text | None = None
    """A key of the policy that is among those that decided."""


class Step(Frozen):
    """What happens, in this order: backends change, time passes, load comes, a request is sent."""

    backends: Backends = Field(default={})
    wait: Duration | None = None
    load: dict[Name, Annotated[int, Field(strict=True, ge=0, le=100_000)]] = Field(default={})
    """Answers in flight at a backend for others, until the next ``load`` of it."""
    ask: Text | None = None
    """What a user says; for more than that, ``body``."""
    body: dict[str, Any] | None = None
    model: Text | None = None
    stream: bool = Field(default=False, strict=True)
    path: Text | None = None
    headers: dict[Text, Text] = Field(default={})
    address: Text | None = None
    """Where the request comes from."""
    key: Name | None = None
    caller: Caller | None = None
    times: Count = 1
    """So many requests, one after the other, each to come to what is expected."""
    begin: bool = Field(default=False, strict=True)
    """Its answer is not awaited before the next step."""
    expect: Expect | None = None

    @property
    def sends(self) -> bool:
        return self.ask is not None or self.body is not None

    @model_validator(mode="after")
    def _one_request(self) -> Step:
        if self.ask is not None and self.body is not None:
            raise ValueError("has both 'ask' and 'body': write one of them")
        if self.expect is not None and not self.sends:
            raise ValueError("expects something of no request: write 'ask' or 'body'")
        if self.ask is not None and self.model is None:
            raise ValueError("asks no model: write 'model'")
        return self


class Case(Step):
    name: Text
    at: Moment | None = None
    """When it begins; noon of today, UTC."""
    disabled: tuple[Name, ...] = ()
    """Backends out of use."""
    models: Models = Models()
    webhooks: dict[Name, Webhook] = Field(default={})
    """By the guard's name."""
    steps: tuple[Step, ...] = ()

    @model_validator(mode="after")
    def _steps_or_one(self) -> Case:
        if bool(self.steps) == self.sends:
            raise ValueError("should have either 'steps', or one request of its own ('ask' or 'body')")
        return self


class TestedAdapter(Frozen):
    """``{}``: servers list it of themselves."""

    tenant: Name | None = None
    """Who has uploaded it."""
    shared_with: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _of_a_tenant(self) -> TestedAdapter:
        if self.shared_with and self.tenant is None:
            raise ValueError("is shared by nobody: write 'tenant'")
        return self


class TestFile(Frozen):
    __test__ = False

    adapters: dict[Text, TestedAdapter] = Field(default={})
    """That there are, as ``base:name``."""

    env: dict[Text, str] = Field(default={})
    """The variables of the policy; there are no others."""
    backends: Backends = Field(default={})
    """For all cases."""
    models: Models = Models()
    webhooks: dict[Name, Webhook] = Field(default={})
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]
