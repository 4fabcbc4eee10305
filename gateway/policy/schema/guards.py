"""``guards``: what is looked for in requests and answers, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.policy.schema.any_guard import (
    EVERY_ACTION,
    Action,
    AnyGuard,
    Check,
    Classifier,
    Direction,
    Domain,
    Label,
    Language,
    Pattern,
    asked_of,
)
from gateway.policy.schema.embedders import EmbedderSettings, NamedEmbedder
from gateway.policy.schema.judges import NamedJudge
from gateway.policy.schema.values import Count, Frozen, Name, Network, Share, Size, Text
from gateway.policy.schema.webhook_guard import WebhookGuard


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

    actions = EVERY_ACTION
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

    actions = EVERY_ACTION
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
    def _classifier_is_asked_of(self) -> InjectionGuard:
        asked_of(self.checks, self.classifier)
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
    """None: a text that urges to seek help, see ``gateway.guards.requests.support``."""


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
    def _classifier_is_asked_of(self) -> ToxicityGuard:
        asked_of(self.checks, self.classifier)
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

    embedder: NamedEmbedder = EmbedderSettings(model="builtin")
    spacy: dict[Language, Text] = Field(default={})
    """The spaCy model of a language, for names and places: ``{en: en_core_web_lg}``."""
    threads: Count = 1
    max_queue: Count = 256
    """Texts that may wait; beyond that a guard's ``on_error`` applies."""
    max_batch: Count = 16
