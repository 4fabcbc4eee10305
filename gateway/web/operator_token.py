"""The operator's own token: who shows it is told how the gateway does in detail, figures and backends' names."""

from __future__ import annotations

from hmac import compare_digest

from starlette.types import Scope

from gateway.errors import Unauthenticated

_SCHEME = b"bearer "


class OperatorToken:
    """``token`` None: nobody is."""

    def __init__(self, token: str | None) -> None:
        self._token = token.encode() if token else None

    def asks(self, scope: Scope) -> bool:
        """Whether the request shows the token (``authorization: Bearer …``)."""
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        return (
            self._token is not None
            and len(shown) == 1
            and shown[0][: len(_SCHEME)].lower() == _SCHEME
            and compare_digest(shown[0][len(_SCHEME) :].strip(), self._token)
        )

    def demand(self, scope: Scope) -> None:
        """Raises ``Unauthenticated``."""
        if not self.asks(scope):
            raise Unauthenticated(
                "This page is the operator's. Send 'authorization: Bearer TOKEN' with the token of "
                "TOLLGATE_METRICS_TOKEN, or else of the file 'metrics-token' in the gateway's state folder."
            )
