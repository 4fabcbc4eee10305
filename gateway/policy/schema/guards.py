"""``guards``: what is looked for in requests and answers, and what becomes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gateway.policy.schema.cors import HeaderName
from gateway.policy.schema.judges import NamedJudge
from gateway.policy.schema.values import Count, Frozen, HttpUrl, Name, Network, Share, Size, Text, Timeout

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
    "/v1/responses",
    "/v1/audio",
    "/v1/images",
    "/v1/rerank",
    "/v2/rerank",
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
Label = Annotated[str, AfterValidator(_label)]
Domain = Annotated[str, AfterValidator(_domain)]
Language = Annotated[str, AfterValidator(_language)]


class Classifier(Frozen):
    """A text classification model of the transformers library, instead of the bundled one."""

    model: Text
    """A local folder, or a hub id."""
    unsafe: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Its labels that count; their probabilities are added up."""


def _asked(checks: tuple[Check, ...], classifier: Classifier | None) -> None:
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


_EVERY: Mapping[Direction, tuple[Action, ...]] = {
    "input": ("block", "redact", "mask", "local", "flag"),
    "output": ("block", "redact", "mask", "flag"),
}


class PiiAllow(Frozen):
    """Personal data that is nobody's secret."""

    domains: tuple[Domain, ...] = ()
    """E-mail addresses and URLs in these, and in all domains under them."""
    networks: tuple[Network, ...] = ()
    """IP addresses in these, and URLs to them."""
    test_cards: bool = False
    """The card numbers that payment providers publish for tests."""
    texts: tuple[Text, ...] = ()
    """These very ones, in any case and with any separators."""


class PiiGuard(AnyGuard):
    """Personal data. ``mask`` puts placeholders upstream and gives the caller the originals back."""

    actions = _EVERY
    kind: Literal["pii"]
    action: Action = "mask"
    entities: Annotated[tuple[Text, ...], Field(min_length=1)] = (
        "EMAIL_ADDRESS",
        "PHONE_NUMBER",
        "CREDIT_CARD",
        "IBAN_CODE",
        "US_SSN",
        "NATIONAL_ID",
    )
    """Presidio's names; NATIONAL_ID is all of ``pii.patterns.NATIONAL``. PERSON, LOCATION, ORGANIZATION and ADDRESS are
    the shipped tagger's, or a spaCy model's, see ``sidecar``. IP_ADDRESS is not among the defaults, as programs and
    answers about networks are full of those that are nobody's."""
    patterns: dict[Label, Pattern] = Field(default={})
    """Regular expressions for what else is personal here, by the label that a mask shows."""
    allow: PiiAllow = PiiAllow()
    """What passes all the same."""
    languages: Annotated[tuple[Language, ...], Field(min_length=1)] = ("en",)
    threshold: Share = 0.5
    checks: Annotated[tuple[Check, ...], Field(min_length=1)] = ("fast", "model")
    """``fast`` finds what patterns and checksums can find; ``model`` is Presidio, for the entities that need it."""


class SecretsGuard(AnyGuard):
    """Credentials: providers' keys, private keys, tokens."""

    actions = _EVERY
    kind: Literal["secrets"]
    action: Action = "redact"


class InjectionGuard(AnyGuard):
    """Text that tries to turn the model against its instructions, in messages, tool results and documents."""

    actions: ClassVar[Mapping[Direction, tuple[Action, ...]]] = {
        "input": ("block", "local", "flag"),
        "output": ("block", "flag"),
    }
    kind: Literal["injection"]
    action: Action = "flag"
    """Not ``block``: the shipped detector is unsure of what is unlike its training data, see ``docs/guards.md``."""
    spotlight: bool = False
    """Whether tools' results are marked as data in what the model reads, whatever the action."""
    canary: bool = False
    """Whether the system prompt has a number that no answer holds unless it repeats the prompt."""
    threshold: Share = 0.5
    checks: Annotated[tuple[Check, ...], Field(min_length=1)] = ("fast", "model")
    classifier: Classifier | None = None
    judge: NamedJudge | None = None
    """It decides what the others leave open."""

    @model_validator(mode="after")
    def _classifier_is_asked(self) -> InjectionGuard:
        _asked(self.checks, self.classifier)
        if self.spotlight and "input" not in self.on:
            raise ValueError(
                "'spotlight' marks tools' results in requests; write 'on: [input]' or leave it out"
            )
        if self.canary and "output" not in self.on:
            raise ValueError("'canary' is looked for in answers; write 'on: [input, output]' or leave it out")
        return self


ToxicityCategory = Literal["hate", "harassment", "violence", "sexual", "self_harm"]


class SelfHarm(Frozen):
    """What a request that speaks of self-harm gets, in place of the 400 for what a guard blocks."""

    action: Literal["support", "flag", "block"] = "support"
    """``support`` answers with ``message``, and asks no model; with ``flag`` the model answers."""
    message: Text | None = None
    """None: a text that urges to seek help, see ``gateway.guards.actions.support``."""


class ToxicityGuard(AnyGuard):
    """Hate, harassment, violence, sexual content, self-harm."""

    actions: ClassVar[Mapping[Direction, tuple[Action, ...]]] = {
        "input": ("block", "local", "flag"),
        "output": ("block", "flag"),
    }
    kind: Literal["toxicity"]
    threshold: Share = 0.5
    categories: dict[ToxicityCategory, Share] = Field(default={})
    """Thresholds of their own; a category that is not named has ``threshold``."""
    self_harm: SelfHarm = SelfHarm()
    """Where ``action`` is ``block``. Answers are cut for it only where its own is, too."""
    checks: Annotated[tuple[Check, ...], Field(min_length=1)] = ("fast", "model")
    classifier: Classifier | None = None
    judge: NamedJudge | None = None

    @model_validator(mode="after")
    def _classifier_is_asked(self) -> ToxicityGuard:
        _asked(self.checks, self.classifier)
        return self


class TopicsGuard(AnyGuard):
    """Words and patterns that are not to be spoken of."""

    actions: ClassVar[Mapping[Direction, tuple[Action, ...]]] = {
        "input": ("block", "redact", "local", "flag"),
        "output": ("block", "redact", "flag"),
    }
    kind: Literal["topics"]
    words: tuple[Text, ...] = ()
    """Whole words or phrases, in any case."""
    patterns: tuple[Pattern, ...] = ()
    """Regular expressions, as Python has them."""

    @model_validator(mode="after")
    def _something(self) -> TopicsGuard:
        if not self.words and not self.patterns:
            raise ValueError("should have 'words' or 'patterns'")
        return self


class LengthGuard(AnyGuard):
    """A limit on the characters of a request's texts together, or of an answer."""

    kind: Literal["length"]
    max_characters: Count


WebhookFormat = Literal["verdicts", "litellm", "moderations", "classify", "predict", "presidio", "lakera"]


def _params(params: dict[str, Any]) -> dict[str, Any]:
    try:
        written = orjson.dumps(params)
    except TypeError as error:
        raise ValueError(f"cannot be written as JSON: {error}") from None
    if len(written) > 8192:
        raise ValueError("should be at most 8 KiB of JSON")
    return params


def _header_value(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x20-\x7e]*", value.get_secret_value()):
        raise ValueError("should be printable ASCII on one line")
    return value


_OWN_HEADERS = frozenset({"content-length", "content-type", "host", "connection", "transfer-encoding"})


class WebhookGuard(AnyGuard):
    """An HTTP server that judges texts: one of one's own, a moderation API, a classifier, a vendor's."""

    actions = _EVERY
    kind: Literal["webhook"]
    url: HttpUrl
    """The whole address that is posted to."""
    format: WebhookFormat = "verdicts"
    """What is sent, and what comes back; see ``gateway.guards.scanners.webhook_formats``."""
    model: Text | None = None
    """With ``moderations`` and ``classify``: the model that is asked for."""
    api_key: SecretStr | None = None
    """Sent as a bearer token."""
    headers: dict[HeaderName, Annotated[SecretStr, AfterValidator(_header_value)]] = Field(default={})
    params: Annotated[dict[Text, Any], AfterValidator(_params)] = Field(default={})
    """What else the server wants to be told, such as its project or the language."""
    texts: Literal["raw", "masked"] = "raw"
    """``masked``: without the personal data and credentials that patterns find."""
    labels: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Glob patterns of what counts; None: all."""
    threshold: Share = 0.5
    local: bool = False
    """It may see texts that must stay local."""
    max_concurrency: Count = 32
    """Questions at once, of each worker."""

    @property
    def has_remedies(self) -> bool:
        """Whether the server may say what becomes of what it finds."""
        return self.format in ("verdicts", "litellm")

    @model_validator(mode="after")
    def _fits_the_format(self) -> WebhookGuard:
        if self.format in ("classify", "predict") and self.labels is None:
            raise ValueError(
                "should have 'labels': those of the classifier that count; it scores harmless ones, too"
            )
        if self.model is not None and self.format not in ("moderations", "classify"):
            raise ValueError(f"'model' has no place in 'format: {self.format}'; leave it out")
        if self.texts == "masked" and self.format == "presidio":
            raise ValueError("'format: presidio' looks for what 'texts: masked' hides; write 'texts: raw'")
        if forbidden := _OWN_HEADERS & {name.lower() for name in self.headers}:
            raise ValueError(f"'headers' cannot set {min(forbidden)}, which the gateway sets itself")
        if self.api_key is not None and "authorization" in {name.lower() for name in self.headers}:
            raise ValueError("should have either 'api_key' or an authorization among 'headers'")
        return self


GUARD_KINDS = ("pii", "secrets", "injection", "toxicity", "topics", "length", "webhook")


def _named(value: Any) -> Any:
    """A guard that is called by its kind need not say its kind."""
    if not isinstance(value, dict):
        return value
    return {
        name: {"kind": name, **guard} if name in GUARD_KINDS and isinstance(guard, dict) else guard
        for name, guard in value.items()
    }


Guard = Annotated[
    PiiGuard | SecretsGuard | InjectionGuard | ToxicityGuard | TopicsGuard | LengthGuard | WebhookGuard,
    Field(discriminator="kind"),
]
Guards = Annotated[dict[Name, Guard], BeforeValidator(_named)]


class ReviewSettings(Frozen):
    """A sample of what guards that only flag have found, for people to read: one JSON object a line."""

    enabled: bool = False
    path: Text = "findings.jsonl"
    """A relative path begins at the state folder."""
    share: Share = 1.0
    """Of the requests in which something was found."""
    per_minute: Count = 60
    """Requests and answers of each guard, by each worker, of which something is written."""
    context: Annotated[int, Field(strict=True, ge=0, le=1000)] = 80
    """Characters before and after a finding."""
    max_bytes: Size = 16 * 2**20
    """Of the file and the one before it."""

    def is_sampled(self, fraction: float) -> bool:
        """``fraction`` is a request's own, 0 to 1."""
        return self.enabled and fraction < self.share


class SidecarSettings(Frozen):
    """The process that runs the small models for guards and the semantic cache."""

    embedder: Text = "builtin"
    """A sentence-transformers folder or hub id; ``builtin`` is all-MiniLM-L6-v2, which the shipped heads need."""
    spacy: dict[Language, Text] = Field(default={})
    """The spaCy model of a language, for names and places: ``{en: en_core_web_lg}``."""
    threads: Count = 1
    max_queue: Count = 256
    """Texts that may wait; beyond that a guard's ``on_error`` applies."""
    max_batch: Count = 16
