"""``telemetry``: traces and metrics sent away by OTLP (https://opentelemetry.io/docs/specs/otlp/). ``metrics``."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.policy.schema.values import Form, Frozen, Share, Text, Timeout, http_url

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

Conventions = Literal["v1.36", "v1.41", "genai-v0.1"]
"""Versions of OpenTelemetry's conventions for generative AI: the last one before their names changed, the last one
among the common conventions, and the first one of a repository of their own."""
ScoreReceiver = Literal["none", "otlp", "langfuse", "phoenix", "langsmith"]
_BEYOND_API = {"langfuse": "/api/public/otel", "langsmith": "/otel", "phoenix": "", "otlp": ""}
"""What the address of traces ends with beyond that of the API for scores."""


def _receiver(text: str) -> str:
    url = http_url(text) if text else ""
    for ending in ("/v1/traces", "/v1/metrics", "/v1/logs"):
        if url.endswith(ending):
            raise ValueError(f"should end before '{ending}', such as {url.removesuffix(ending)}")
    return url


def _header(name: str) -> str:
    if not _HEADER.fullmatch(name):
        raise ValueError(f"'{name[:40]}' is not the name of a header")
    return name.lower()


class Scores(Frozen):
    """Whom scores of traced requests are sent to: JSON over HTTP, beside the traces."""

    receiver: ScoreReceiver = "none"
    """``otlp``: log events ``gen_ai.evaluation.result``; the others have an API for scores, and read no such events."""
    endpoint: Annotated[str, AfterValidator(_receiver), Form(r"^([Hh][Tt][Tt][Pp][Ss]?://\S+)?$")] = ""
    """Up to where ``/v1/logs`` would follow, or where the API is; empty: found from that of traces."""
    headers: dict[Annotated[str, AfterValidator(_header)], SecretStr] = Field(default={})
    """In place of those of traces, where there are any."""


class Telemetry(Frozen):
    """Off while no endpoint is named."""

    endpoint: Annotated[str, AfterValidator(_receiver), Form(r"^([Hh][Tt][Tt][Pp][Ss]?://\S+)?$")] = ""
    """Up to where ``/v1/traces`` would follow; with ``grpc`` host and port."""
    protocol: Literal["http", "grpc"] = "http"
    """``http`` is protobuf over HTTP."""
    headers: dict[Annotated[str, AfterValidator(_header)], SecretStr] = Field(default={})
    """With every export, such as the receiver's key."""
    timeout: Timeout = 10.0
    """Seconds that an export may take, its retries included."""
    compression: Literal["none", "gzip"] = "none"
    traces: bool = Field(default=True, strict=True)
    metrics: bool = Field(default=True, strict=True)
    """Whether the receiver takes metrics (``gen_ai.client.*``), too."""
    interval: Timeout = 60.0
    """Seconds between two exports of metrics."""
    sample: Share = 1.0
    """Of the requests whose caller sends no ``traceparent``, or whose decision is not followed."""
    follow_caller: bool = Field(default=True, strict=True)
    """Whether a request is traced where its caller's ``traceparent`` says so, and else not."""
    content: bool = Field(default=False, strict=True)
    """Whether traces hold prompts and answers: as guards have masked them, and never what must stay local."""
    conventions: Conventions = "v1.41"
    """Whose names attributes and metrics have."""
    service: Text = "tollgate"
    """``service.name``."""
    resource: dict[Text, Text] = Field(default={})
    """Further attributes of this gateway, such as ``deployment.environment.name``."""
    scores: Scores = Scores()

    @property
    def score_address(self) -> str | None:
        """Where scores go; None: nowhere, or where that of traces does not tell."""
        scores = self.scores
        if scores.receiver == "none" or not self.endpoint:
            return None
        if scores.endpoint:
            return scores.endpoint
        ending = _BEYOND_API[scores.receiver]
        if self.protocol == "grpc" or not self.endpoint.endswith(ending):
            return None
        return self.endpoint.removesuffix(ending)

    @model_validator(mode="after")
    def _expressible(self) -> Telemetry:
        if self.content and self.conventions == "v1.36":
            raise ValueError(
                "conventions v1.36 have no attributes for content: take 'conventions: v1.41', or leave content out"
            )
        return self


class MetricsSettings(Frozen):
    """What ``/metrics`` tells."""

    tenants: Annotated[bool | None, Field(strict=True)] = None
    """Whether tenants are told apart; None is as the environment says (``TOLLGATE_METRICS_TENANTS``)."""
    max_tenants: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 100
    """Tenants that have labels of their own; the others share one."""
