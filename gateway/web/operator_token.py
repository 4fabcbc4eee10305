"""The operator's token, which opens ``/metrics`` and the details of ``/readyz``."""

from __future__ import annotations

from hmac import compare_digest

from starlette.types import Scope

from gateway.errors import Unauthenticated
from gateway.web.operator_port import arrived_at

_SCHEME = b"bearer "


class OperatorToken:
    """``token`` None: no request has it. Who can reach ``port``, the operator's own, needs none."""

    def __init__(self, token: str | None, port: int | None = None) -> None:
        self._token = token.encode() if token else None
        self._port = port

    def matches(self, scope: Scope) -> bool:
        """Whether the request has the token (``authorization: Bearer …``), or came by the operator's port."""
        if arrived_at(scope, self._port):
            return True
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        return (
            self._token is not None
            and len(values) == 1
            and values[0][: len(_SCHEME)].lower() == _SCHEME
            and compare_digest(values[0][len(_SCHEME) :].strip(), self._token)
        )

    def require(self, scope: Scope) -> None:
        """Raises ``Unauthenticated``."""
        if not self.matches(scope):
            raise Unauthenticated(
                "This page is the operator's. Send 'authorization: Bearer TOKEN' with the token of "
                "TOLLGATE_METRICS_TOKEN, or else of the file 'metrics-token' in the gateway's state folder."
            )
