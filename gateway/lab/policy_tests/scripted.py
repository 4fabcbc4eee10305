"""What stands in for all that is outside the gateway: backends, the sidecar's models, guards' servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import orjson

from gateway.backends import fitting
from gateway.backends.fake import FakeBackend, last_user_text, vectors_of
from gateway.backends.openai_errors import from_response, from_transport
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import GatewayError, Upstream
from gateway.lab.policy_tests.schema import Answer, Webhook
from gateway.policy import schema
from gateway.policy.schema import Policy, WebhookGuard
from gateway.types import Call, Chunk, Chunks, Usage

FOREVER = 10.0**8
PLAIN = Answer()
_NO_SCRIPT = schema.FakeBackend(kind="fake", script=(schema.FakeReply(reply=""),))


class Scripts:
    """How each backend answers now, and what each was sent."""

    def __init__(self, backends: Mapping[str, Sequence[Answer]]) -> None:
        self._answers: dict[str, list[Answer]] = {}
        self._given: dict[int, int] = {}
        """How often an answer was given that has a number of times, by its identity."""
        self.sent: dict[str, list[str]] = {}
        """By request id, what backends were sent, as text; a shadow's copy has an id of its own."""
        self.change(backends)

    def change(self, backends: Mapping[str, Sequence[Answer]]) -> None:
        for name, answers in backends.items():
            self._answers[name] = [*answers]

    def answer(self, backend: str, call: Call) -> Answer:
        asked, target = last_user_text(call), call.target
        for answer in self._answers.get(backend, ()):
            if answer.match is not None and answer.match not in asked:
                continue
            if answer.model is not None and (target is None or answer.model != target.model):
                continue
            given = self._given.get(id(answer), 0)
            if answer.times is not None and given >= answer.times:
                continue
            self._given[id(answer)] = given + 1
            return answer
        return PLAIN

    def note(self, call: Call) -> None:
        request = call.request
        given = request.prompt if request.messages is None else request.messages
        text = json.dumps(given, ensure_ascii=False, default=str)
        self.sent.setdefault(call.request_id, []).append(text)


class ScriptedBackend(FakeBackend):
    """Answers by ``scripts``, in the ways in which a server may."""

    def __init__(self, name: str, scripts: Scripts) -> None:
        super().__init__(name, _NO_SCRIPT)
        self._scripts = scripts

    async def _answer(self, call: Call) -> Chunks:
        answer = self._scripts.answer(self.name, call)
        at_once = not (call.request.stream or call.timeouts.bounds_silence)
        timeouts = UpstreamTimeouts(call.timeouts, at_once=at_once, deadline=call.deadline)
        if answer.unreachable:
            raise from_transport(self.name, httpx.ConnectError("nobody listens"), self._outage)
        call.leaves()
        self._scripts.note(call)
        await self._pause(FOREVER if answer.hangs else answer.delay, timeouts)
        if answer.status >= 400:
            raise self._error(answer)
        self._outage.over()
        if call.request.embeds:
            for chunk in vectors_of(call.request):
                yield chunk
            return
        fitting.clear_reports(call)
        params = fitting.fitted(call).params
        pieces = re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", answer.reply)
        cap = params.get("max_completion_tokens") or params.get("max_tokens")
        sent = pieces if cap is None else pieces[:cap]
        for number, piece in enumerate(sent):
            if number == answer.cut_after:
                raise self._cut()
            for index in range(call.request.n):
                delta = {"content": piece} if number else {"role": "assistant", "content": piece}
                yield Chunk(index=index, delta=delta, logprobs=_logprobs(call, answer, piece))
            if not at_once:
                timeouts.progress()
            if number:
                await self._pause(answer.token_delay, timeouts)
        if answer.cut_after is not None and answer.cut_after >= len(sent):
            raise self._cut()
        usage = Usage(
            prompt=_or(answer.prompt_tokens, len(last_user_text(call).split())),
            completion=_or(answer.completion_tokens, len(sent) * call.request.n),
            cached=answer.cached_tokens,
        )
        finish = answer.finish if len(sent) == len(pieces) else "length"
        for index in range(call.request.n):
            last = index == call.request.n - 1
            yield Chunk(index=index, delta={}, finish_reason=finish, usage=usage if last else None)

    def _error(self, answer: Answer) -> GatewayError:
        fields = {"message": answer.message or "scripted error", "code": answer.code}
        body = orjson.dumps({"error": fields})
        wait = {} if answer.retry_after is None else {"retry-after": f"{answer.retry_after:g}"}
        error = from_response(self.name, answer.status, wait, body, self._outage)
        if isinstance(error, Upstream):
            error.upstream_status = answer.status  # as a server's refusal, which costs nothing
        return error


class GuardServers(httpx.AsyncBaseTransport):
    """All servers that are no model's: those of ``webhook`` guards answer as they are told, nobody else does."""

    def __init__(self, policy: Policy, webhooks: Mapping[str, Webhook]) -> None:
        self._answers = {
            guard.url: webhooks[name]
            for name, guard in policy.guards.items()
            if isinstance(guard, WebhookGuard) and name in webhooks
        }

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._answers.get(str(request.url))
        if answer is None:
            raise httpx.ConnectError("nobody listens there in this test", request=request)
        await asyncio.sleep(answer.delay)
        return httpx.Response(answer.status, json=answer.body, request=request)


def _logprobs(call: Call, answer: Answer, piece: str) -> Any:
    if answer.mean_logprob is None or not call.request.params.get("logprobs"):
        return None
    return {"content": [{"token": piece, "logprob": answer.mean_logprob, "bytes": None, "top_logprobs": []}]}


def _or(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given
