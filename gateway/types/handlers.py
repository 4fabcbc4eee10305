"""The shapes of what calls pass: stages, handlers, backends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

from gateway.policy.schema import Target
from gateway.types.call import Call
from gateway.types.chunk import Chunk, Chunks
from gateway.types.json_value import Json

Handler = Callable[[Call], Chunks]

Stage = Callable[[Handler], Handler]

WholeHandler = Callable[[Call], Awaitable[Sequence[Chunk]]]
"""The same for a call whose request ``is_whole``: all of its answer at once."""


@runtime_checkable
class CountsTokens(Protocol):
    """A backend whose provider counts a prompt's tokens when asked to."""

    async def count_tokens(self, call: Call, target: Target) -> dict[str, Json]:
        """Its answer, with ``input_tokens``. Raises ``gateway.errors.GatewayError`` only."""
        ...


@runtime_checkable
class AnswersWhole(Protocol):
    """A backend that has a shorter way for what is not streamed."""

    def whole(self, call: Call, target: Target) -> Awaitable[Sequence[Chunk]]:
        """The answer to a call whose request ``is_whole``. Raises as ``stream``."""
        ...


@runtime_checkable
class PassesOn(Protocol):
    """A backend whose server has other APIs than those that generate text."""

    def pass_on(self, call: Call, target: Target) -> Chunks:
        """The answer of the API that the request names, as it comes. Raises ``BadRequest`` where there is none such;
        otherwise as ``stream``."""
        ...


class Backend(Protocol):
    """Answers calls. Implementations never import each other, and know nothing of stages."""

    name: str

    def stream(self, call: Call, target: Target) -> Chunks:
        """Answer ``call`` with ``target``'s model. Raises ``gateway.errors.GatewayError`` only."""
        ...

    async def probe(self) -> None:
        """Prove that the backend can serve; raise ``gateway.errors.GatewayError`` if it cannot."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
