"""A port of the operator's own, where Prometheus scrapes and no caller can reach."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope

from gateway.errors import NotFound

PAGE = "/metrics"


def arrived_at(scope: Scope, port: int | None) -> bool:
    """Whether the request came by this port of the gateway's."""
    server = scope.get("server")
    return port is not None and server is not None and server[1] == port


class OperatorPort:
    """The operator's pages are on the operator's port, and nothing else is. Without one they are where all is."""

    def __init__(self, port: int, paths: Collection[str]) -> None:
        """``paths`` are those that the port has."""
        self._port = port
        self._paths = frozenset(paths)

    def check(self, scope: Scope) -> None:
        """Raises ``NotFound``."""
        if arrived_at(scope, self._port):
            if scope["path"] not in self._paths:
                raise NotFound(
                    f"This port has {', '.join(sorted(self._paths))} only. Models are at the gateway's own port."
                )
        elif scope["path"] == PAGE:
            raise NotFound(f"{PAGE} has a port of its own here (TOLLGATE_METRICS_PORT).")
