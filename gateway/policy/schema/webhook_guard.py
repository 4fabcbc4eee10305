"""``guards`` of ``kind: webhook``: an HTTP server judges texts."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.policy.schema.any_guard import (
    EVERY_ACTION,
    AnyGuard,
)
from gateway.policy.schema.cors import HeaderName
from gateway.policy.schema.values import Count, HttpUrl, Name, Share, Text

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

    actions = EVERY_ACTION
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
    region: Name | None = None
    """Where its server is, for ``residency``."""
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
