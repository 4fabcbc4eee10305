"""``prompt_tokens``: where servers tell what they hold, a prompt's ids are asked for before one of them is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from gateway.held_prefixes.held_prefixes import HeldPrefixes
from gateway.types import Call, Chunk, Chunks


class AnswersWhole(Protocol):
    def __call__(self, call: Call, /) -> Chunks: ...

    async def whole(self, call: Call, /) -> Sequence[Chunk]: ...


class PromptTokens:
    """In the place of ``following``."""

    def __init__(self, held: HeldPrefixes, following: AnswersWhole) -> None:
        self._held = held
        self._following = following

    def __call__(self, call: Call) -> Chunks:
        if not self._held.tells(call.model, call.request):
            return self._following(call)
        chunks = self._looked(call)
        call.relays(chunks)
        return chunks

    async def whole(self, call: Call) -> Sequence[Chunk]:
        request = call.request
        if not self._held.tells(call.model, request):
            return await self._following.whole(call)
        await self._held.look(call)
        try:
            return await self._following.whole(call)
        finally:
            self._held.done(request)

    async def _looked(self, call: Call) -> Chunks:
        request = call.request
        await self._held.look(call)
        try:
            chunks = self._following(call)
            call.looks_on(chunks)
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        finally:
            self._held.done(request)
