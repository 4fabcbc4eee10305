"""What the endpoints ``/v1/messages`` and ``/v1/messages/count_tokens`` need of the dialect."""

from __future__ import annotations

from gateway.types import Call
from gateway.wire.anthropic import request_reader
from gateway.wire.anthropic.events import Events
from gateway.wire.anthropic.whole import Whole


class AnthropicFront:
    """Anthropic's Messages dialect, for the endpoint that generates."""

    read_request = staticmethod(request_reader.read_request)

    def events(self, call: Call) -> Events:
        return Events(call)

    def whole(self, call: Call) -> Whole:
        return Whole(call)

    def own(self, request_id: str, created: int) -> bytes | None:
        # A stream begins with what its prompt is thought to need, and that changes with what was learned.
        return None
