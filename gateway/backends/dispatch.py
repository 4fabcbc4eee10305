"""The innermost handlers: a call goes to the backend of its target."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from gateway.errors import BadRequest, Internal
from gateway.policy.schema import Target
from gateway.types import AnswersWhole, Backend, Call, Chunk, Chunks, Handler, PassesOn, WholeHandler


def dispatch(backends: Mapping[str, Backend]) -> Handler:
    """For answers that come as a stream, and for the APIs that are passed on."""

    def pass_on(call: Call, target: Target) -> Chunks:
        backend, api = backends[target.backend], call.request.api
        if isinstance(backend, PassesOn):
            return backend.pass_on(call, target)
        kind = call.policy.backends[target.backend].kind
        raise BadRequest(
            f"The model '{call.model}' is served by backend '{target.backend}' of kind '{kind}', which has no "
            f"{(api or '').replace('_', ' ')}. Ask for a model whose backend is of kind 'openai' and has that API.",
            param="model",
            code="unsupported_parameter",
        )

    def handle(call: Call) -> Chunks:
        target = call.target
        if target is None:
            raise Internal("The request reached the backends without a target.")
        if call.request.api is not None:
            return pass_on(call, target)
        return backends[target.backend].stream(call, target)

    return handle


def dispatch_whole(backends: Mapping[str, Backend]) -> WholeHandler:
    """For whole answers: of a backend that can only stream them, all that it streams."""

    async def collected(backend: Backend, call: Call, target: Target) -> Sequence[Chunk]:
        async with aclosing(backend.stream(call, target)) as chunks:
            return [chunk async for chunk in chunks]

    ways = {
        name: backend.whole if isinstance(backend, AnswersWhole) else partial(collected, backend)
        for name, backend in backends.items()
    }

    def handle(call: Call) -> Awaitable[Sequence[Chunk]]:
        target = call.target
        if target is None:
            raise Internal("The request reached the backends without a target.")
        return ways[target.backend](call, target)

    return handle
