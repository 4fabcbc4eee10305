"""Texts as recordings have them: masked by the policy's own guards on personal data, and by two that are always there.

The policy's guards mask here whatever they do with requests: one that only flags, or scans answers alone, knows what
is personal all the same. Beside them stand a guard of what a ``pii`` guard finds by default, and one of credentials. A
text that cannot be judged is not recorded. All that is no text (pictures, sound, files) is left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.children.process_pool import ProcessPool
from gateway.errors import GatewayError
from gateway.fair_turns import FairTurns
from gateway.guards.guards import Guard
from gateway.guards.requests.screening import Screening
from gateway.guards.scanners.factory import build_scanner
from gateway.guards.scanners.offload import Offload
from gateway.media import kind_of
from gateway.observe.metrics import Metrics
from gateway.policy.schema import PiiGuard, Policy, SecretsGuard
from gateway.recording.kept_answer import KeptAnswer
from gateway.sidecar.api import Sidecar
from gateway.types import Call, ChatRequest, Json, Principal, Receipt

_TIMEOUT = 10.0
"""Seconds for one judgement: nobody waits for it."""
_DEFAULTS: Mapping[str, PiiGuard | SecretsGuard] = {
    "recorded personal data": PiiGuard(kind="pii", checks=("fast",)),
    "recorded credentials": SecretsGuard(kind="secrets"),
}
_MESSAGE = ("role", "name", "content", "refusal", "reasoning_content", "tool_calls", "tool_call_id")
_PARAMS = frozenset(
    {
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format"),
        *("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "seed", "n"),
        *("frequency_penalty", "presence_penalty", "reasoning_effort", "verbosity"),
    }
)
"""Of a request, what another model would be asked with."""


class TextMasker:
    """One policy generation's. ``sidecar`` finds what no pattern does; ``pool`` scans long texts."""

    def __init__(self, policy: Policy, sidecar: Sidecar, pool: ProcessPool | None = None) -> None:
        turns = FairTurns()
        self._policy = policy
        self._guards = [
            Guard(
                name,
                config,
                build_scanner(config, sidecar, None),
                turns,
                Offload(config, pool) if pool is not None else None,
            )
            for name, config in _configs(policy)
        ]
        self._metrics = Metrics()
        """Not the worker's: what is found here has been counted, or is no request."""

    async def masked(self, answer: KeptAnswer, principal: Principal, route: str) -> str | None:
        """What was asked, and the answers, as JSON; None where there is no text, or one that is not to be kept."""
        asked = answer.asked
        if (plain := unmasked(answer)) is None:
            return None
        messages, answers = plain
        params = {name: value for name, value in asked.params.items() if name in _PARAMS}
        request = ChatRequest(asked.model, messages=(*messages, *answers), params=params)
        receipt, model = Receipt("", time.time()), answer.model
        if model not in self._policy.models:  # an adapter, which is guarded as its base is
            model = model.rpartition(":")[0]
        call = Call("", principal, request, self._policy, receipt, time.perf_counter(), model=model)
        mine = [
            guard
            for guard in self._guards
            if guard.config.looks_after(principal.tenant, key_id=principal.key_id, model=model, route=route)
        ]
        try:
            await Screening(call, mine, self._metrics, replies=False).run()
        except GatewayError:
            return None
        whole = call.request.messages or ()
        told: dict[str, Json] = {"messages": whole[: len(messages)], "answers": whole[len(messages) :]}
        return orjson.dumps({**told, "params": dict(call.request.params)}, default=_object).decode()


def _configs(policy: Policy) -> list[tuple[str, PiiGuard | SecretsGuard]]:
    """The policy's, so that they mask: what they find, whom they look after, what they let pass stay as they are."""
    found: list[tuple[str, PiiGuard | SecretsGuard]] = []
    always: dict[str, Any] = {"on": ("input",), "on_error": "block", "timeout": _TIMEOUT, "origins": None}
    for name, guard in policy.guards.items():
        if isinstance(guard, PiiGuard):
            found.append((name, guard.model_copy(update={**always, "action": "mask"})))
        elif isinstance(guard, SecretsGuard):
            found.append((name, guard.model_copy(update={**always, "action": "redact"})))
    return [*found, *_DEFAULTS.items()]


def unmasked(answer: KeptAnswer) -> tuple[list[Mapping[str, Json]], list[Mapping[str, Json]]] | None:
    """What was asked, and the answers, as messages of texts; None where the answer is not whole, and for token ids,
    which nobody can read."""
    if not answer.is_whole or (messages := _conversation(answer.asked)) is None:
        return None
    return messages, [_plain(message) for message in answer.messages]


def _conversation(request: ChatRequest) -> list[Mapping[str, Json]] | None:
    """None for token ids, which nobody can read."""
    if request.messages is not None:
        return [_plain(message) for message in request.messages]
    prompts = request.prompt if isinstance(request.prompt, list) else [request.prompt]
    if not all(isinstance(prompt, str) for prompt in prompts):
        return None
    return [{"role": "user", "content": prompt} for prompt in prompts]


def _plain(message: Mapping[str, Json]) -> Mapping[str, Json]:
    kept = {name: message[name] for name in _MESSAGE if message.get(name) is not None}
    if isinstance(content := kept.get("content"), Sequence) and not isinstance(content, str):
        kept["content"] = [_part(part) for part in content]
    return kept


def _part(part: Json) -> Json:
    if isinstance(part, Mapping):
        if isinstance(text := part.get("text"), str):
            return {"type": "text", "text": text}
        return {"type": "text", "text": f"[{kind_of(part) or 'part'}]"}
    return {"type": "text", "text": part if isinstance(part, str) else ""}


def _object(value: object) -> Json:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
