"""The response object, beside its output."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.errors import GatewayError
from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.responses import ids
from gateway.wire.responses.body_to_request import ResponseRequest
from gateway.wire.responses.usage import write_usage

_INCOMPLETE: Mapping[str, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is not complete, by ``finish_reason``."""
_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt"})
"""Of those that the published schema has for an error within a response, the ones that can be meant here."""


@dataclass(slots=True)
class ResponseFields:
    """What is known of the answer as a whole."""

    call: Call
    asked: ResponseRequest
    stored: bool
    """Whether it can be looked up afterwards."""
    created: int = field(default_factory=lambda: int(time.time()))
    finish_reason: str | None = None
    usage: Usage | None = None
    tollgate: Mapping[str, Json] | None = None
    """Why a guard has cut it, and where."""
    service_tier: str | None = None
    completed: int | None = None
    """What is kept and what is sent have the same."""

    @property
    def id(self) -> str:
        return ids.response_id(self.call.request_id)

    @property
    def incomplete(self) -> str | None:
        """Why it ended before its end."""
        return _INCOMPLETE.get(self.finish_reason or "")

    def observe(self, chunk: Chunk) -> None:
        """Take over what ``chunk`` holds beside output."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if chunk.revocation is not None:
            self.tollgate = chunk.revocation
        if isinstance(tier := chunk.envelope.get("service_tier"), str):
            self.service_tier = tier

    def begun(self, status: str = "in_progress") -> dict[str, Json]:
        return self._response(status, [])

    def ended(self, output: Sequence[Json]) -> dict[str, Json]:
        """``completed``, or ``incomplete``."""
        reason = self.incomplete
        response = self._response("incomplete" if reason else "completed", output)
        if reason:
            response["incomplete_details"] = {"reason": reason}
        else:
            if self.completed is None:
                self.completed = max(int(time.time()), self.created)
            response["completed_at"] = self.completed
        if self.tollgate is not None:
            response["tollgate"] = self.tollgate
        return response

    def failed(self, output: Sequence[Json], error: GatewayError) -> dict[str, Json]:
        own = error.body()["error"]
        code = own["code"] if own["code"] in _CODES else "server_error"
        return self._response("failed", output) | {"error": {**own, "code": code}}

    def cancelled(self, output: Sequence[Json] = ()) -> dict[str, Json]:
        return self._response("cancelled", output)

    def _response(self, status: str, output: Sequence[Json]) -> dict[str, Json]:
        call = self.call
        echo = self.asked.echo
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": call.candidate.model if call.candidate else call.model,
            "output": list(output),
            **echo,
            "service_tier": self.service_tier or echo["service_tier"],
            "store": self.stored,
            "usage": write_usage(self.usage) if self.usage is not None else None,
        }
