"""Who may call, and how much: ``keys``, ``jwt``, ``tenants``, ``tiers``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.policy.schema.values import (
    Count,
    Day,
    Dollars,
    Duration,
    Frozen,
    Moment,
    Name,
    Network,
    Sha256,
    Share,
    Text,
    Timeout,
    Weight,
)

DEFAULT_TIER = "default"
HOUSE = "tollgate"
"""The tenant that pays for what the gateway asks for itself; a policy may set it limits like any other."""
"""Of those whose key and tenant name none."""


class QuotaSettings(Frozen):
    """What is not set is not limited."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    tokens_per_day: Count | None = None
    concurrent_requests: Count | None = None
    strict: bool = Field(default=False, strict=True)
    """Hold all that a request may come to, so that tokens never go beyond their limits; else half of it, or what is
    usual."""


class Budget(Frozen):
    """US dollars, by the price table; days and months are UTC's."""

    usd_per_day: Dollars | None = None
    usd_per_month: Dollars | None = None


Scope = Literal["inference", "admin"]
"""What a key opens: the models' paths, or ``/admin``."""


class PreviousHash(Frozen):
    """What a rotated key was before, and until when that is still accepted."""

    sha256: Sha256
    until: Moment


class Key(Frozen):
    """An API key, known only by the SHA-256 of its text."""

    id: Name
    sha256: Sha256
    tenant: Name = "default"
    tier: Name | None = None
    """Instead of the tenant's."""
    models: tuple[Text, ...] = ("*",)
    """Glob patterns of the public model names it may use."""
    expires: Day | None = None
    """Valid through the day before this one, in UTC."""
    allow_ips: tuple[Network, ...] = ()
    """Addresses and networks it may be used from; empty is anywhere."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = ("inference",)
    previous: PreviousHash | None = None
    residency: tuple[Name, ...] = ()
    """Regions in which its requests stay, of those in which its tenant's do."""
    quotas: QuotaSettings = QuotaSettings()
    budget: Budget = Budget()


Algorithm = Literal["RS256", "ES256", "EdDSA"]


class Jwt(Frozen):
    """One issuer of JSON Web Tokens (RFC 7519), and how its claims are read."""

    issuer: Text
    audience: Text
    jwks: Text
    """A URL, or a file beside the policy, with the issuer's public keys (RFC 7517)."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "EdDSA")
    tenant_claim: Text = "tenant"
    tier_claim: Text = "tier"
    models_claim: Text = "models"
    models: tuple[Text, ...] = ("*",)
    """What a token without the models claim may use."""
    leeway: Duration = 30.0
    """Clocks may differ by this much."""
    refresh: Timeout = 300.0
    """How often a JWKS is fetched anew."""
    stale_if_error: Duration = 86400.0
    """For how long the last good keys count while the JWKS cannot be read."""
    revoked: tuple[Text, ...] = ()
    """Ids (``jti``) or subjects (``sub``) that are refused."""


class OnSaturation(Frozen):
    """What becomes of a tier's requests once a backend is this full."""

    action: Literal["shed", "downgrade", "wait"] = "shed"
    at: Share = 0.9
    to: Name | None = None
    """The model to use instead of the one asked for; with ``downgrade`` only."""

    @model_validator(mode="after")
    def _needs(self) -> OnSaturation:
        if (self.action == "downgrade") != (self.to is not None):
            raise ValueError(
                "'to' names the model to downgrade to: give it with 'action: downgrade', only there"
            )
        return self


class Tier(Frozen):
    priority: Annotated[int, Field(strict=True, ge=0, le=100)] = 0
    """The engine serves the highest first; slots that a tier leaves by ``on_saturation`` are for higher ones."""
    weight: Weight = 1.0
    """Its share of a full backend, in relation to the other tiers'."""
    max_wait: Timeout = 30.0
    max_queue: Count = 1000
    """Requests of this tier that may wait at one backend."""
    patience: Timeout = 5.0
    """In it a stream that waits has no head: if it is refused, that is a status which clients try again."""
    ageing: Timeout = 10.0
    """A request's weight doubles when it has waited this long, trebles after twice as long, and so on."""
    sla: Timeout | None = None
    """From arrival to the last token; what cannot make it is refused at once."""
    on_saturation: OnSaturation | None = None
    quotas: QuotaSettings = QuotaSettings()
    budget: Budget = Budget()


class Tenant(Frozen):
    tier: Name | None = None
    local_only: bool = False
    """Its content goes to local backends only."""
    residency: tuple[Name, ...] = ()
    """Regions in which its content stays; empty: anywhere."""
    quotas: QuotaSettings = QuotaSettings()
    budget: Budget = Budget()
