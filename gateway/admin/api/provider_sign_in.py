"""``/admin/api/oidc``: signing in at the page by an OpenID provider. Browsers go there; what they get are redirects."""

from __future__ import annotations

import logging
import time

from pydantic import ConfigDict

from gateway.admin.api.operation import ROOT
from gateway.admin.endpoint import PRIVATE, Handle, Request, Strict, Told
from gateway.errors import NotFound
from gateway.identity.oidc import Provider, SignInFailed
from gateway.identity.session_cookie import PendingSignIn, Seal, Session
from gateway.policy.schema import Oidc
from gateway.policy.schema.admin import CALLBACK
from gateway.web.operation import JSON, Operation
from gateway.web.sending import Headers
from gateway.web.session_auth import COOKIE, SessionAuth, cookie, set_cookie

LOGIN = ROOT + "/oidc/login"
PATHS = (LOGIN, CALLBACK)
PENDING = "tollgate_sign_in"
PATIENCE = 600.0
"""Seconds that one may take at the provider."""

log = logging.getLogger(__name__)


class Callback(Strict):
    """What providers send back; they may add to it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    code: str | None = None
    state: str | None = None
    iss: str | None = None
    error: str | None = None


class Redirected(Told):
    """There is no body."""


def operations(
    sessions: SessionAuth, seal: Seal[PendingSignIn], provider: Provider
) -> list[tuple[Operation, Handle]]:
    async def login(request: Request) -> None:
        oidc = _config(request)
        pending = PendingSignIn(expires=time.time() + PATIENCE, issuer=oidc.issuer)
        try:
            address = await provider.address(oidc, pending)
        except SignInFailed as error:
            await _failed(request, oidc, error)
            return
        # Lax: the provider's redirect comes from another site.
        held = set_cookie(
            PENDING, seal.close(pending), seconds=PATIENCE, secure=_secure(oidc), same_site="Lax"
        )
        await _redirect(request, address, [held])

    async def callback(request: Request) -> None:
        oidc = _config(request)
        answer = request.query(Callback).model_dump(exclude_none=True)
        pending = seal.open(cookie(request.scope, PENDING))
        try:
            if pending is None:
                raise SignInFailed("state", "the browser was not sent away from here, or too long ago")
            person = await provider.person(oidc, pending, answer)
        except SignInFailed as error:
            await _failed(request, oidc, error)
            return
        seconds = request.context.runtime.policy.admin.session
        session = Session(
            expires=time.time() + seconds,
            issuer=oidc.issuer,
            client_id=oidc.client_id,
            subject=person.subject,
            name=person.name,
            roles=person.roles,
        )
        log.info("%r signed in at the page", person.subject)
        held = set_cookie(COOKIE, sessions.seal.close(session), seconds=seconds, secure=_secure(oidc))
        await _redirect(request, "/admin", [held, _forget(oidc)])

    def operation(path: str, name: str, summary: str, query: type[Strict] | None) -> Operation:
        answers = {JSON: Redirected}
        return Operation("GET", path, name, summary, "admin", answers, 303, query, None, (404,), scope=None)

    return [
        (operation(LOGIN, "oidcLogin", "Go to the identity provider to sign in", None), login),
        (operation(CALLBACK, "oidcCallback", "Come back from the identity provider", Callback), callback),
    ]


def _config(request: Request) -> Oidc:
    oidc = request.context.runtime.policy.admin.oidc
    if oidc is None:
        raise NotFound("The policy has no admin.oidc: sign in at /admin with a key.")
    return oidc


def _secure(oidc: Oidc) -> bool:
    return oidc.redirect_uri.startswith("https:")


def _forget(oidc: Oidc) -> tuple[bytes, bytes]:
    return set_cookie(PENDING, "", seconds=0, secure=_secure(oidc), same_site="Lax")


async def _failed(request: Request, oidc: Oidc, error: SignInFailed) -> None:
    log.warning("%s: nobody signed in: %s", request.context.request_id, error)
    await _redirect(request, f"/admin#/sign-in/{error.reason}", [_forget(oidc)])


async def _redirect(request: Request, address: str, headers: Headers) -> None:
    told = [(b"location", address.encode("ascii", "backslashreplace")), (b"content-length", b"0")]
    privately = [*PRIVATE, (b"referrer-policy", b"no-referrer")]
    await request.send(
        {"type": "http.response.start", "status": 303, "headers": [*told, *privately, *headers]}
    )
    await request.send({"type": "http.response.body", "body": b""})
