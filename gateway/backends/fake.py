"""A scripted backend in the gateway's own process: for tests, demos, and trying out a policy without a model."""

from __future__ import annotations

import asyncio
import math
import re
import struct
from collections.abc import Iterator
from contextlib import aclosing
from random import Random

import orjson

from gateway.backends import fitting
from gateway.backends.exchange import late
from gateway.backends.openai_errors import Outage, from_response
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import BadRequest, GatewayError, Upstream, UpstreamFailed
from gateway.policy import schema
from gateway.types import Call, ChatRequest, Chunk, Chunks, Usage
from gateway.wire.openai import embeddings as openai_embeddings


class FakeBackend:
    """Answers from a script. A word with the space after it is a chunk, and counts as a token.

    Where embeddings are wanted the script decides on errors only, and equal inputs have equal vectors.
    """

    def __init__(self, name: str, config: schema.FakeBackend) -> None:
        self.name = name
        self._config = config
        self._outage = Outage()

    async def stream(self, call: Call, target: schema.Target) -> Chunks:
        if call.request.stream:
            async with aclosing(self._answer(call)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        whole: list[Chunk] = []  # as of a server: nothing has come of one that breaks off
        try:
            async with aclosing(self._answer(call)) as chunks:
                async for chunk in chunks:
                    whole.append(chunk)  # noqa: PERF401 (what has come is told with the error)
        except GatewayError as error:
            error.unread = whole
            raise
        for chunk in whole:
            yield chunk

    async def _answer(self, call: Call) -> Chunks:
        asked = last_user_text(call)
        reply = next((entry for entry in self._config.script if entry.match in asked), None)
        at_once = not (call.request.stream or call.timeouts.bounds_silence)
        timeouts = UpstreamTimeouts(call.timeouts, at_once=at_once, deadline=call.deadline)
        call.leaves()
        await self._pause(self._config.first_token_delay, timeouts)
        if reply is None or reply.status >= 400:
            status = 404 if reply is None else reply.status
            message = "no entry of the script matches" if reply is None else reply.reply or "scripted error"
            body = orjson.dumps({"error": {"message": message}})
            error = from_response(self.name, status, {}, body, self._outage)
            if isinstance(error, Upstream):
                error.upstream_status = status  # as a server's refusal, which costs nothing
            raise error
        if call.request.embeds:
            for chunk in vectors_of(call.request):
                yield chunk
                await asyncio.sleep(0)
            return
        pieces = re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", reply.reply)
        fitting.clear_reports(call)
        params = fitting.fitted(call).params
        limit = params.get("max_completion_tokens") or params.get("max_tokens")
        sent = pieces if limit is None else pieces[:limit]
        for number, piece in enumerate(sent):
            if number == reply.cut_after:
                raise self._cut()
            for index in range(call.request.n):
                yield Chunk(index=index, delta={"content": piece} if number else _opening(piece))
            if not at_once:
                timeouts.progress()
            if number:
                await self._pause(self._config.token_delay, timeouts)
        if len(sent) == reply.cut_after:
            raise self._cut()
        usage = Usage(prompt=len(asked.split()), completion=len(sent) * call.request.n)
        reason = "stop" if len(sent) == len(pieces) else "length"
        for index in range(call.request.n):
            last = index == call.request.n - 1
            yield Chunk(index=index, delta={}, finish_reason=reason, usage=usage if last else None)

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
        """A script can always be read out."""

    async def aclose(self) -> None:
        """Nothing is held."""


def _opening(piece: str) -> dict[str, str]:
    return {"role": "assistant", "content": piece}


def last_user_text(call: Call) -> str:
    """What the script is matched with."""
    if call.request.messages is None:
        return str(call.request.prompt)
    sent = [message.get("content") for message in call.request.messages if message.get("role") == "user"]
    last = sent[-1] if sent else ""
    if isinstance(last, list):
        return " ".join(str(part.get("text", "")) for part in last)
    return str(last or "")


DIMENSIONS, MOST_DIMENSIONS = 8, 1024


def vectors_of(request: ChatRequest) -> Iterator[Chunk]:
    """An embedding of each input."""
    inputs = openai_embeddings.inputs_of(request)
    tokens = sum(len(one.split()) if isinstance(one, str) else len(one) for one in inputs)
    size = request.params.get("dimensions") or DIMENSIONS
    if size > MOST_DIMENSIONS:
        raise BadRequest(
            f"A scripted backend makes vectors of up to {MOST_DIMENSIONS} dimensions. Ask for fewer.",
            param="dimensions",
            code="invalid_value",
        )
    for index, one in enumerate(inputs):
        last = index == len(inputs) - 1
        random = Random(str(one))
        numbers = [random.gauss(0, 1) for _ in range(size)]
        length = math.hypot(*numbers)
        vector = struct.pack(f"<{size}f", *(number / length for number in numbers))
        yield Chunk(
            index=index,
            delta={"embedding": openai_embeddings.write_vector(vector, request.params)},
            finish_reason="stop",
            usage=Usage(tokens, 0) if last else None,
            more=not last,
        )
