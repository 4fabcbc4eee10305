"""Sessions of people at the admin page: what their cookie holds, sealed, so that no worker has to remember them.

The cookie of who signed in with a key holds the key's SHA-256, not the key: at every request it is looked up again, and
a key that is revoked ends its sessions at once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.secret_box import SecretBox

MAX_COOKIE = 3800
"""Bytes of a sealed text at most: browsers keep 4,096 of a cookie, its name and attributes included."""


class Session(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    expires: float
    """Unix time."""
    csrf: str = Field(default_factory=lambda: secrets.token_urlsafe(24))
    """What the page sends along with each change, and no other site can know."""
    digest: str = ""
    """The SHA-256 of the key that it was begun with; empty where a provider said who it is, and the rest is set."""
    issuer: str = ""
    client_id: str = ""
    subject: str = ""
    name: str = ""
    """For people to read."""
    roles: tuple[str, ...] = ()
    """Of those that the policy named."""


class PendingSignIn(BaseModel):
    """What a browser keeps while its user is at the provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    expires: float
    """Unix time."""
    issuer: str
    state: str = Field(default_factory=lambda: secrets.token_urlsafe(24))
    nonce: str = Field(default_factory=lambda: secrets.token_urlsafe(24))
    verifier: str = Field(default_factory=lambda: secrets.token_urlsafe(48))
    """PKCE's (RFC 7636)."""


Content = TypeVar("Content", Session, PendingSignIn)


class Seal(Generic[Content]):
    """Seals what cookies hold: one ``kind`` of content, for one ``purpose``.

    ``secret`` is the gateway's; whoever knows it can sign in as anyone. ``clock`` is Unix time.
    """

    def __init__(
        self, secret: str, purpose: str, kind: type[Content], clock: Callable[[], float] = time.time
    ) -> None:
        self._box = SecretBox(secret, purpose)
        self._kind: type[Content] = kind
        self._clock = clock

    def close(self, session: Content) -> str:
        return self._box.seal(session.model_dump_json().encode())

    def open(self, text: str) -> Content | None:
        """None for one that was not sealed here, or is over."""
        content = self._box.open(text) if len(text) <= MAX_COOKIE else None
        if content is None:
            return None
        try:
            session = self._kind.model_validate_json(content)
        except ValidationError:
            return None
        return session if self._clock() < session.expires else None
