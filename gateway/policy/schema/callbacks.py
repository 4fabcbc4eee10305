"""``callbacks``: whom the gateway tells what happens, signed as Standard Webhooks says."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from gateway.policy.schema.values import Count, Form, Frozen, HttpUrl, Timeout

CallbackEvent = Literal["budget", "breaker", "policy", "guard", "cost", "rollout", "drift"]
PREFIX = "whsec_"


def _secret(value: SecretStr) -> SecretStr:
    try:
        key = key_of(value)
    except ValueError:
        raise ValueError(
            f"should be '{PREFIX}' and base64, as Standard Webhooks has it; "
            f'echo "{PREFIX}$(openssl rand -base64 32)" makes one'
        ) from None
    if not 24 <= len(key) <= 64:
        raise ValueError(
            f"has {len(key)} bytes; it should have 24 to 64: "
            f'echo "{PREFIX}$(openssl rand -base64 32)" makes one'
        )
    return value


def key_of(secret: SecretStr) -> bytes:
    """The signing key. Raises ``ValueError`` for what is none."""
    text = secret.get_secret_value()
    if not text.startswith(PREFIX):
        raise ValueError
    try:
        return base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError from error


Secret = Annotated[SecretStr, AfterValidator(_secret), Form(f"^{PREFIX}")]
Fraction = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]


class Callback(Frozen):
    """One receiver."""

    url: HttpUrl
    secret: Secret
    """``whsec_`` and the key in base64."""
    previous_secret: Secret | None = None
    """Signs as well, while receivers change to the other."""
    events: Annotated[tuple[CallbackEvent, ...], Field(min_length=1)] = (
        "budget",
        "breaker",
        "policy",
        "guard",
        "rollout",
        "drift",
    )
    budget_at: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (0.5, 0.8, 1.0)
    """Shares of a budget."""
    per_minute: Count = 60
    """Of each kind of event, by each worker."""
    timeout: Timeout = 10.0
    """For one attempt."""
