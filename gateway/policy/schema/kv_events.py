"""``backends.<name>.kv_events``: where a model server publishes what its KV cache holds."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.policy.schema.values import Frozen

_Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
_Ranks = Annotated[int, Field(strict=True, ge=1, le=16)]


class KvEvents(Frozen):
    """On the host of the server's API, by ZeroMQ. The names are vLLM's."""

    port: _Port = 5557
    topic: str = ""
    """That the topics of its messages begin with."""
    replay_port: _Port | None = None
    """Where it repeats what was missed."""
    ranks: _Ranks = 1
    """Data-parallel ranks, each at a port of its own, from ``port`` on."""

    @model_validator(mode="after")
    def _ports_apart(self) -> Self:
        last = self.port + self.ranks - 1
        again = self.replay_port
        if last > 65535 or (again is not None and again + self.ranks - 1 > 65535):
            raise ValueError(f"should leave room for the ports of {self.ranks} ranks below 65536")
        if again is not None and again - self.ranks < self.port < again + self.ranks:
            raise ValueError(
                f"should have a replay_port apart from the {self.ranks} of its events, from {self.port} on"
            )
        return self
