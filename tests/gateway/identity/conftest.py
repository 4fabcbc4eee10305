from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.backends.transport import OutgoingTransport
from gateway.identity.authenticator import Authenticator
from gateway.types import Principal
from tests.fakes import policy
from tests.gateway.identity import issuer

Authenticate = Callable[..., Authenticator]


@pytest.fixture
async def authenticator(tmp_path: Path) -> AsyncIterator[Authenticate]:
    """Makes authenticators of a policy's keys; with no ``jwt`` given, the issuer's keys are in a file."""
    (tmp_path / "keys.json").write_bytes(issuer.jwks())
    async with AsyncExitStack() as stack:
        transport = OutgoingTransport()
        stack.push_async_callback(transport.aclose)

        def make(*, jwt: list[dict[str, Any]] | None = None, **more: Any) -> Authenticator:
            options = {name: more.pop(name) for name in ("before", "clock", "dev_key_sha256") if name in more}
            jwt = [issuer.entry("keys.json")] if jwt is None else jwt
            made = Authenticator(policy(jwt=jwt, **more), tmp_path, transport, **options)
            stack.push_async_callback(made.aclose)
            return made

        yield make


def scope(
    bearer: str | None = None,
    *,
    client: str | None = "203.0.113.9",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
) -> dict[str, Any]:
    pairs = list(headers.items() if isinstance(headers, dict) else headers or [])
    if bearer is not None:
        pairs.append(("authorization", f"Bearer {bearer}"))
    return {
        "type": "http",
        "path": "/",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
        "client": None if client is None else (client, 1234),
    }


def at_once(work: Awaitable[Principal]) -> Principal:
    """The result of a coroutine that must not wait for anything."""
    with pytest.raises(StopIteration) as caught:
        cast("Any", work).send(None)
    return cast("Principal", caught.value.value)
