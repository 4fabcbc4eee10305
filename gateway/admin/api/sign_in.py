"""``/admin/api/session``: signing in at the page, and out. It needs no key: it takes one."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.api.operation import ROOT
from gateway.admin.endpoint import Handle, Reply, Request, Strict, Told
from gateway.errors import Forbidden
from gateway.identity.api_keys import digest_of
from gateway.identity.session_cookie import Session
from gateway.policy.schema.admin import Role
from gateway.types import Principal
from gateway.web.operation import JSON, Operation
from gateway.web.session_auth import COOKIE, SessionAuth, check_origin, is_secure, set_cookie

PATH = ROOT + "/session"


class SignIn(Strict):
    key: Annotated[str, Field(min_length=1, max_length=1000)]
    """An API key of scope ``admin``."""


class SessionState(Told):
    signed_in: bool
    name: str | None = None
    """The key's id, or the person's name."""
    role: Literal["admin", "viewer"] | None = None
    """A viewer changes nothing."""
    oidc: bool = False
    """Whether one can sign in by an identity provider, too: at ``/admin/api/oidc/login``."""
    scopes: tuple[Literal["inference", "admin"], ...] = ()
    """``inference``, too: the playground needs no other key."""
    csrf: str | None = None
    """To be sent with each change, as X-CSRF-Token."""
    expires: float | None = None
    """Unix time."""


def operations(sessions: SessionAuth) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> SessionState:
        check_origin(request.scope)
        session = sessions.session(request.scope)
        if session is None:
            return SessionState(signed_in=False, oidc=request.context.runtime.policy.admin.oidc is not None)
        return _state(session, sessions.holder(request.scope, session), sessions.role(request.scope, session))

    async def begin(request: Request) -> Reply:
        check_origin(request.scope)
        digest = digest_of(request.body(SignIn).key)
        runtime = request.context.runtime
        principal = runtime.authenticator.holder(digest, request.scope)
        if "admin" not in principal.scopes:
            raise Forbidden(
                "This API key is for models only. Make one that opens this page: tollgate keys create --id NAME "
                "--scopes admin",
                code="wrong_scope",
            )
        seconds = runtime.policy.admin.session
        session = Session(expires=time.time() + seconds, digest=digest.hex())
        header = set_cookie(
            COOKIE, sessions.seal.close(session), seconds=seconds, secure=is_secure(request.scope)
        )
        return _reply(_state(session, principal, "admin"), [header])

    async def end(request: Request) -> Reply:
        check_origin(request.scope)
        header = set_cookie(COOKIE, "", seconds=0, secure=is_secure(request.scope))
        return _reply(SessionState(signed_in=False), [header])

    def operation(
        method: str, name: str, summary: str, body: type[Strict] | None, errors: tuple[int, ...]
    ) -> Operation:
        answers = {JSON: SessionState}
        return Operation(
            method, PATH, name, summary, "admin", answers, body=body, errors=(403, *errors), scope=None
        )

    return [
        (operation("GET", "showSession", "Who is signed in at the page", None, ()), show),
        (operation("POST", "signIn", "Sign in at the page", SignIn, (401, 503)), begin),
        (operation("DELETE", "signOut", "Sign out", None, ()), end),
    ]


def _state(session: Session, principal: Principal, role: Role | None) -> SessionState:
    return SessionState(
        signed_in=True,
        name=session.name or principal.key_id,
        role=role,
        scopes=principal.scopes,
        csrf=session.csrf,
        expires=session.expires,
    )


def _reply(state: SessionState, headers: list[tuple[bytes, bytes]]) -> Reply:
    return Reply(state.model_dump_json(exclude_none=True).encode(), JSON, headers)
