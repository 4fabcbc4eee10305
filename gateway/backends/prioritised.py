"""A server that heeds a priority in a request's body, as vLLM and SGLang do where they are started for it.

https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html: lower ones first.
https://docs.sglang.io/advanced_features/server_arguments.html: higher ones first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.backends.openai import OpenAIBackend, _Sent
from gateway.types import Call, ChatRequest

IDLE = -1
"""Of a line of a batch: behind all tiers."""


class PrioritisedBackend(OpenAIBackend):
    """Sends the priority of the caller's tier. What a caller says of his own priority is not passed on."""

    def __init__(self, *given: Any, lower_first: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self._sign = -1 if lower_first else 1

    def _written(self, sent: _Sent, request: ChatRequest) -> bytes:
        params = {**request.params, "priority": self._sign * priority_of(sent.call)}
        return super()._written(sent, replace(request, params=params))


def priority_of(call: Call) -> int:
    return IDLE if call.line is not None else call.policy.tier(call.principal.tier).priority
