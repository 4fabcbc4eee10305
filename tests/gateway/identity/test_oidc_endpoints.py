"""An OpenID provider's metadata says where the gateway sends requests, with its secret among them: not to itself."""

from __future__ import annotations

import time
from typing import Any

import httpx
import orjson
import pytest

from gateway.identity.oidc import Provider, SignInFailed
from gateway.identity.session_cookie import PendingSignIn
from gateway.policy.schema.admin import Oidc

pytestmark = pytest.mark.anyio
REMOTE, LOCAL = "https://login.example.com", "http://127.0.0.1:9000"


def oidc(issuer: str) -> Oidc:
    return Oidc.model_validate(
        {
            "issuer": issuer,
            "client_id": "tollgate",
            "client_secret": "the-client-secret",
            "redirect_uri": "https://gateway.example.com/admin/api/oidc/callback",
            "admins": ["ops"],
        }
    )


async def asked(issuer: str, **endpoints: Any) -> list[str]:
    """The addresses that the gateway sends requests to while somebody signs in."""
    seen: list[str] = []
    metadata = {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "jwks_uri": f"{issuer}/jwks",
    } | endpoints

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200, stream=httpx.ByteStream(orjson.dumps(metadata)))

    config, pending = (
        oidc(issuer),
        PendingSignIn(expires=time.time() + 60, issuer=issuer, state="s", nonce="n", verifier="v"),
    )
    provider = Provider(httpx.MockTransport(answer))
    with pytest.raises(SignInFailed):
        await provider.address(config, pending)
        await provider.person(config, pending, {"state": "s", "code": "c"})
    return seen


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:6379/",
        "https://127.0.0.1/x",
        "http://localhost:8100/v1",
        "http://[::1]:9/",
        "https://localhost/x",
        "http://10.0.0.1/",
        "ftp://login.example.com/x",
        "file:///etc/passwd",
        "http://[",
        7,
    ],
)
@pytest.mark.parametrize("endpoint", ["token_endpoint", "authorization_endpoint"])
async def test_a_remote_provider_sends_the_gateway_nowhere_on_this_machine(
    endpoint: str, address: object
) -> None:
    assert await asked(REMOTE, **{endpoint: address}) == [f"{REMOTE}/.well-known/openid-configuration"]


async def test_a_provider_on_this_machine_may() -> None:
    assert await asked(LOCAL) == [f"{LOCAL}/.well-known/openid-configuration", f"{LOCAL}/token"]


async def test_endpoints_on_other_hosts_are_usual() -> None:
    """Google's are."""
    other = "https://oauth2.example.net/token"
    assert await asked(REMOTE, token_endpoint=other) == [f"{REMOTE}/.well-known/openid-configuration", other]
