"""The key or token that a request presents."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import Unauthenticated


def presented(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """From ``Authorization: Bearer …``, as OpenAI's clients send it, or ``x-api-key``, as Anthropic's do.

    Where both are there, the first counts. Raises ``Unauthenticated`` where neither can be used.
    """
    api_key = b""
    malformed = False
    for name, value in headers:
        if name == b"authorization":
            scheme, _, credential = value.strip().partition(b" ")
            if scheme.lower() == b"bearer" and (credential := credential.strip()):
                return str(credential, "latin-1")
            malformed = True
        elif name == b"x-api-key":
            api_key = value.strip()
    if api_key:
        return str(api_key, "latin-1")
    if malformed:
        raise Unauthenticated(
            "The Authorization header is not of the form 'Bearer KEY'. Send your API key that way."
        )
    raise Unauthenticated(
        "No API key. Send it in the header 'Authorization: Bearer KEY', or in 'x-api-key: KEY'."
    )
