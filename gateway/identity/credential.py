"""The key or token that a request presents."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import Unauthenticated


def presented(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """From ``Authorization: Bearer …``, as OpenAI's clients send it, or ``x-api-key``, as Anthropic's do, or
    ``api-key``, as Azure's do, or ``x-goog-api-key``, as Google's do.

    Where several are there, the first of these counts. Raises ``Unauthenticated`` where none can be used.
    """
    api_key = azure_key = google_key = b""
    malformed = False
    for name, value in headers:
        if name == b"authorization":
            scheme, _, credential = value.strip().partition(b" ")
            if scheme.lower() == b"bearer" and (credential := credential.strip()):
                return str(credential, "latin-1")
            malformed = True
        elif name == b"x-api-key":
            api_key = value.strip()
        elif name == b"api-key":
            azure_key = value.strip()
        elif name == b"x-goog-api-key":
            google_key = value.strip()
    if found := api_key or azure_key or google_key:
        return str(found, "latin-1")
    if malformed:
        raise Unauthenticated(
            "The Authorization header is not of the form 'Bearer YOUR_KEY'. Send your API key that way."
        )
    # OpenAI's words, as far as they go: clients know them.
    raise Unauthenticated(
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY), or in a header x-api-key, api-key or x-goog-api-key."
    )
