"""``admin``: the operators' page and API, and who may sign in there."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from gateway.policy.schema.values import Frozen, HttpUrl, Text, Timeout

CALLBACK = "/admin/api/oidc/callback"
"""The path to which an identity provider sends people back."""
Role = Literal["admin", "viewer"]
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _private(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise ValueError("should begin with https: codes and tokens go over it")
    return url


def _callback(url: str) -> str:
    if urlsplit(url).path != CALLBACK:
        raise ValueError(f"should be the gateway's address and {CALLBACK}, as the provider knows it")
    return url


PrivateUrl = Annotated[HttpUrl, AfterValidator(_private)]


class Oidc(Frozen):
    """An OpenID provider by which people sign in at the page."""

    issuer: PrivateUrl
    client_id: Text
    client_secret: SecretStr | None = None
    """None: a public client, which PKCE alone protects."""
    redirect_uri: Annotated[PrivateUrl, AfterValidator(_callback)]
    scopes: tuple[Text, ...] = ("openid", "profile", "email")
    roles_claim: Text = "roles"
    """The claim of the ID token with a list of roles or groups; dots lead into objects."""
    admins: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Values of that claim which may do everything."""
    viewers: tuple[Text, ...] = ()
    """Values which may look."""

    def role_of(self, roles: tuple[str, ...]) -> Role | None:
        if not set(self.admins).isdisjoint(roles):
            return "admin"
        return "viewer" if not set(self.viewers).isdisjoint(roles) else None


class Admin(Frozen):
    """The page and the API at ``/admin``, for keys of scope ``admin``."""

    enabled: bool = Field(default=False, strict=True)
    session: Timeout = 43200.0
    """How long one who signed in at the page stays so."""
    oidc: Oidc | None = None
