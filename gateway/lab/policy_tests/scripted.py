"""What stands in for all that is outside the gateway: backends, the sidecar's models, guards' servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import httpx
import orjson

from gateway.backends import fitting
from gateway.backends.exchange import late
from gateway.backends.openai_errors import Outage, from_response, from_transport
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import GatewayError, Upstream, UpstreamFailed
from gateway.lab.policy_tests.schema import Answer, Webhook
from gateway.policy.schema import Policy, Target, WebhookGuard
from gateway.types import Call, Chunk, Chunks, Usage
from gateway.wire.openai import embeddings

FOREVER = 10.0**8
PLAIN = Answer()
DIMENSIONS = 8


class Scripts:
    """How each backend answers now, and what each was sent."""

    def __init__(self, backends: Mapping[str, Sequence[Answer]]) -> None:
        self._answers: dict[str, list[Answer]] = {}
        self._given: dict[int, int] = {}
        """How often an answer was given that has a number of times, by its identity."""
        self.sent: dict[str, list[str]] = {}
        """By request id, what backends were sent, as text."""
        self.change(backends)

    def change(self, backends: Mapping[str, Sequence[Answer]]) -> None:
        for name, answers in backends.items():
            self._answers[name] = [*answers]

    def answer(self, backend: str, call: Call, target: Target) -> Answer:
        asked = _last_user_text(call)
        for answer in self._answers.get(backend, ()):
            if answer.match is not None and answer.match not in asked:
                continue
            if answer.model is not None and answer.model != target.model:
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
        self.sent.setdefault(call.request_id.removesuffix("-shadow"), []).append(text)


class ScriptedBackend:
    """A ``Backend`` by ``scripts``."""

    def __init__(self, name: str, scripts: Scripts) -> None:
        self.name = name
        self._scripts = scripts
        self._outage = Outage()

    async def stream(self, call: Call, target: Target) -> Chunks:
        answer = self._scripts.answer(self.name, call, target)
        if call.request.stream:
            async with aclosing(self._answer(call, answer)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        whole: list[Chunk] = []  # as of a server: nothing has come of one that breaks off
        try:
            async with aclosing(self._answer(call, answer)) as chunks:
                async for chunk in chunks:
                    whole.append(chunk)  # noqa: PERF401 (what has come is told with the error)
        except GatewayError as error:
            error.unread = whole
            raise
        for chunk in whole:
            yield chunk

    async def _answer(self, call: Call, answer: Answer) -> Chunks:
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
            for chunk in _vectors(call):
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
            prompt=_or(answer.prompt_tokens, len(_last_user_text(call).split())),
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

    async def _pause(self, seconds: float, timeouts: UpstreamTimeouts) -> None:
        """Silence, within the limits that a server's would have. Raises ``GatewayError``."""
        try:
            with timeouts:
                await asyncio.sleep(seconds)
        except TimeoutError:
            raise late(self.name, timeouts) from None
        finally:
            timeouts.close()

    def _cut(self) -> UpstreamFailed:
        return UpstreamFailed(
            f"Backend '{self.name}' broke off in the middle of its answer.", code="upstream_cut"
        )

    async def probe(self) -> None:
        """It is there."""

    async def aclose(self) -> None:
        """Nothing is held."""


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


def _last_user_text(call: Call) -> str:
    if call.request.messages is None:
        return str(call.request.prompt)
    sent = [message.get("content") for message in call.request.messages if message.get("role") == "user"]
    last = sent[-1] if sent else ""
    if isinstance(last, list):
        return " ".join(str(part.get("text", "")) for part in last)
    return str(last or "")


def _vectors(call: Call) -> Iterator[Chunk]:
    inputs = embeddings.inputs_of(call.request)
    vector = embeddings.write_vector(b"\0\0\x80\x3f" + b"\0" * 4 * (DIMENSIONS - 1), call.request.params)
    for index, _ in enumerate(inputs):
        last = index == len(inputs) - 1
        usage = Usage(sum(len(str(one).split()) for one in inputs), 0) if last else None
        delta = {"embedding": vector}
        yield Chunk(index=index, delta=delta, finish_reason="stop", usage=usage, more=not last)
