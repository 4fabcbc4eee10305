"""Authentication of the admin page's requests by its cookie, and what keeps other sites from using it.

The cookie is for ``/admin`` only, no script can read it (HttpOnly), and browsers send it for the gateway's own
pages only (SameSite=Strict). Besides that, a request that another site caused is refused, and so is a change without
the token that the page alone was told, as OWASP's "Cross-Site Request Forgery Prevention Cheat Sheet" advises.
"""

from __future__ import annotations

from hmac import compare_digest
from urllib.parse import quote, urlsplit

from starlette.types import Scope

from gateway.errors import Forbidden, Unauthenticated
from gateway.identity.api_keys import DEVELOPMENT
from gateway.identity.session_cookie import Seal, Session
from gateway.policy.schema.admin import Role
from gateway.types import Principal
from gateway.web.context import RequestContext

COOKIE = "tollgate_session"
CSRF = b"x-csrf-token"
_CREDENTIALS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
CHANGE_NOTHING = ("/admin/api/policy/validate", "/admin/api/explain")
"""Paths whose POST only asks: for viewers, too."""


class SessionAuth:
    def __init__(self, seal: Seal[Session]) -> None:
        self.seal = seal

    def principal(self, scope: Scope) -> Principal | None:
        """Who signed in; None for a request with a key of its own, or without a cookie.

        Raises ``Unauthenticated``, code ``session_ended``, and ``Forbidden`` for what does not come from the page.
        """
        if any(name in _CREDENTIALS for name, _ in scope["headers"]):
            return None
        text = cookie(scope, COOKIE)
        if not text:
            return None
        session = self.seal.open(text)
        if session is None:
            raise ended()
        check_origin(scope)
        holder = self.holder(scope, session)
        if scope["method"] not in ("GET", "HEAD"):
            _check_token(scope, session)
            if self.role(scope, session) != "admin" and scope["path"] not in CHANGE_NOTHING:
                raise Forbidden("Your role is to look: changes are for admins.", code="wrong_role")
        return holder

    def session(self, scope: Scope) -> Session | None:
        """The session that a request is part of, where there is one and its key is still accepted."""
        session = self.seal.open(cookie(scope, COOKIE))
        if session is None:
            return None
        try:
            self.holder(scope, session)
        except (Unauthenticated, Forbidden):
            return None
        return session

    def holder(self, scope: Scope, session: Session) -> Principal:
        """Raises ``Unauthenticated`` where its key is not accepted any more, or its role is none any more."""
        runtime = RequestContext.of(scope).runtime
        if not session.digest:
            if self.role(scope, session) is None:
                raise ended()
            key_id = "oidc:" + quote(session.subject, safe="/:@+|~", errors="backslashreplace")
            return Principal(key_id, DEVELOPMENT.tenant, models=(), scopes=("admin",))
        authenticator = runtime.authenticator
        try:
            return authenticator.holder(bytes.fromhex(session.digest), scope)
        except Unauthenticated:
            raise ended() from None

    def role(self, scope: Scope, session: Session) -> Role | None:
        """By the policy in force: None where it does not trust the provider any more, or knows none of the roles."""
        if session.digest:
            return "admin"
        oidc = RequestContext.of(scope).runtime.policy.admin.oidc
        if oidc is None or (oidc.issuer, oidc.client_id) != (session.issuer, session.client_id):
            return None
        return oidc.role_of(session.roles)


def cookie(scope: Scope, name: str) -> str:
    """The value of a cookie; empty where it is not there."""
    for header, value in scope["headers"]:
        if header == b"cookie":
            for pair in str(value, "latin-1").split(";"):
                key, _, content = pair.strip().partition("=")
                if key == name:
                    return content
    return ""


def check_origin(scope: Scope) -> None:
    """Raises ``Forbidden`` for a request that a page of another origin caused."""
    headers = dict(scope["headers"])
    site = headers.get(b"sec-fetch-site")
    origin = headers.get(b"origin")
    foreign = site is not None and site not in (b"same-origin", b"none")
    if origin is not None and site != b"same-origin":
        host = str(headers.get(b"host", b""), "latin-1").lower()
        foreign = foreign or urlsplit(str(origin, "latin-1").lower()).netloc != host
    if foreign:
        raise Forbidden(
            "Pages of other sites may not do this. Open the gateway's own page at /admin.",
            code="wrong_origin",
        )


def is_secure(scope: Scope) -> bool:
    """Whether the browser speaks TLS, be it with a proxy: its Origin says so."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
    return scope.get("scheme") == "https" or origin.startswith(b"https://")


def set_cookie(
    name: str, value: str, *, seconds: float, secure: bool, same_site: str = "Strict"
) -> tuple[bytes, bytes]:
    """A header that sets a cookie for ``/admin``; with 0 seconds, that deletes it."""
    parts = [f"{name}={value}", "Path=/admin", f"Max-Age={int(seconds)}", "HttpOnly", f"SameSite={same_site}"]
    return b"set-cookie", "; ".join([*parts, *(["Secure"] if secure else [])]).encode("latin-1")


def ended() -> Unauthenticated:
    error = Unauthenticated("This session has ended. Sign in again.", code="session_ended")
    error.type = "authentication_error"
    return error


def _check_token(scope: Scope, session: Session) -> None:
    sent = next((value for name, value in scope["headers"] if name == CSRF), b"")
    if not compare_digest(sent, session.csrf.encode()):
        raise Forbidden(
            "A change needs the session's token in a header X-CSRF-Token; the page at /admin sends it. Reload it.",
            code="wrong_csrf_token",
        )
