"""The key or token that a request presents."""

from __future__ import annotations

from gateway.errors import Unauthenticated
from gateway.server.headers import RequestHeaders

_BARE = (b"x-api-key", b"api-key", b"x-goog-api-key")


def presented(headers: RequestHeaders) -> str:
    """From ``Authorization: Bearer …``, as OpenAI's clients send it, or ``x-api-key``, as Anthropic's do, or
    ``api-key``, as Azure's do, or ``x-goog-api-key``, as Google's do.

    Where several are there, the first of these counts. Raises ``Unauthenticated`` where none can be used.
    """
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, credential = authorization.strip().partition(b" ")
        if scheme.lower() == b"bearer" and (credential := credential.strip()):
            return str(credential, "latin-1")
    for name in _BARE:
        if credential := headers.get(name, b"").strip():
            return str(credential, "latin-1")
    if authorization is not None:
        raise Unauthenticated(
            "The Authorization header is not of the form 'Bearer YOUR_KEY'. Send your API key that way."
        )
    # OpenAI's words, as far as they go: clients know them.
    raise Unauthenticated(
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY), or in a header x-api-key, api-key or x-goog-api-key."
    )
