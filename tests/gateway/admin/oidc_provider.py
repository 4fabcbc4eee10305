"""An OpenID provider on a real socket, strict about what it is asked, and scripted in what it answers."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from aiohttp import web

from tests.gateway.identity.issuer import RSA, PrivateKey, jwks, token

CLIENT, SECRET = "gateway", "the client's secret"
CALLBACK = "https://gateway.example/admin/api/oidc/callback"
"""Where the browser is sent back, as the provider has it on record; tests take it to the gateway's real address."""


@dataclass
class Provider:
    issuer: str = ""
    secret: str | None = SECRET
    roles: Any = ("ops",)
    claims: dict[str, Any] = field(default_factory=dict)
    """Of the ID token, beside or instead of the sound ones."""
    metadata: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, PrivateKey] = field(default_factory=lambda: {"first": RSA})
    """What the JWKS has."""
    signing: tuple[str, PrivateKey] = ("first", RSA)
    tampered: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)
    """Queries of the authorization endpoint."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """Why the token endpoint refused."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self.configuration)
        app.router.add_get("/authorize", self.authorize)
        app.router.add_post("/token", self.exchange)
        app.router.add_get("/jwks", self.key_set)
        return app

    async def configuration(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
                **self.metadata,
            }
        )

    async def authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        self.asked.append(asked)
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == CALLBACK and asked["client_id"] == CLIENT
        code = f"code-{len(self.asked)}"
        self.codes[code] = asked
        told = {"code": code, "state": asked["state"], "iss": self.issuer, "session_state": "x"}
        return web.Response(status=302, headers={"location": f"{CALLBACK}?{urlencode(told)}"})

    async def exchange(self, request: web.Request) -> web.Response:
        form = dict(parse_qsl(await request.text()))
        asked = self.codes.pop(form.get("code", ""), None)
        why = self._unsound(request, form, asked)
        if why or asked is None:
            self.refused.append(why)
            return web.json_response({"error": "invalid_grant", "error_description": why}, status=400)
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "nonce": asked["nonce"],
            "email": "alice@example.com",
            "roles": self.roles,
            **self.claims,
        }
        text = token("RS256", self.signing[1], kid=self.signing[0], **claims)
        if self.tampered:
            head, body, signature = text.split(".")
            text = f"{head}.{body}.{signature[:-8]}AAAAAAAA"
        return web.json_response({"access_token": "x", "token_type": "Bearer", "id_token": text})

    async def key_set(self, request: web.Request) -> web.Response:
        return web.Response(body=jwks(**self.keys), content_type="application/json")

    def _unsound(self, request: web.Request, form: dict[str, str], asked: dict[str, str] | None) -> str:
        if asked is None:
            return "the code is unknown, or was used before"
        digest = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=")
        if digest.decode() != asked["code_challenge"]:
            return "the verifier does not fit"
        if form.get("redirect_uri") != CALLBACK:
            return "another redirect_uri"
        if self.secret is not None:
            scheme, _, pair = request.headers.get("authorization", "").partition(" ")
            sent = [unquote(one) for one in b64decode(pair).decode().split(":")] if scheme == "Basic" else []
            if sent != [CLIENT, self.secret] and form.get("client_secret") != self.secret:
                return "another secret"
        return ""


@asynccontextmanager
async def providing() -> AsyncIterator[Provider]:
    provider = Provider()
    runner = web.AppRunner(provider.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()
