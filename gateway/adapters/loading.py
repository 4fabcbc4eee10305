"""Around what sends a call: its adapter is there first, and again where the server has lost it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

from gateway.adapters.adapter import Adapter
from gateway.adapters.residents import Residents
from gateway.backends.openai_errors import ADAPTER_UNREADABLE
from gateway.errors import GatewayError, Overloaded, Rejected, UpstreamUnavailable
from gateway.types import Call, Chunk, Chunks, Handler, WholeHandler

ResidentsOf = Callable[[str], Residents | None]
"""By the backend's name."""


class Loading:
    """For calls to one adapter. ``patience``: seconds that each may wait for a load."""

    def __init__(self, adapter: Adapter, residents_of: ResidentsOf, patience: float) -> None:
        self._adapter = adapter
        self._residents_of = residents_of
        self._patience = patience

    def stream(self, send: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            residents, again = self._residents(call), False
            while True:
                began, begun = time.perf_counter(), False
                async with residents.using(self._adapter, self._left(call)):
                    self._note(call, began)
                    try:
                        async with aclosing(send(call)) as chunks:
                            async for chunk in chunks:
                                begun = begun or chunk.comment is None
                                yield chunk
                        return
                    except (Rejected, UpstreamUnavailable) as error:
                        if begun:
                            raise
                        again = await self._lost(residents, error, again)

        return handle

    def whole(self, send: WholeHandler) -> WholeHandler:
        async def handle(call: Call) -> Sequence[Chunk]:
            residents, again = self._residents(call), False
            while True:
                began = time.perf_counter()
                async with residents.using(self._adapter, self._left(call)):
                    self._note(call, began)
                    try:
                        return await send(call)
                    except (Rejected, UpstreamUnavailable) as error:
                        again = await self._lost(residents, error, again)

        return handle

    async def _lost(self, residents: Residents, error: GatewayError, again: bool) -> bool:
        """Where the server has no such model (404) it was started again, or another gateway has had it unloaded: it is
        loaded once more; also where its files are gone there. Raises ``error`` where that does not help."""
        if error.code == ADAPTER_UNREADABLE:
            await residents.unload(self._adapter.id)
        elif error.status == 404:
            residents.lost(self._adapter.id)
        else:
            raise error
        if again:
            raise Overloaded(
                f"The adapter '{self._adapter.model}' was unloaded again before it could be asked. Try again.",
                param="model",
                code="adapter_unloaded",
                retry_after=1.0,
            ) from error
        return True

    def _residents(self, call: Call) -> Residents:
        target = call.target
        residents = self._residents_of(target.backend) if target is not None else None
        if residents is None:
            raise UpstreamUnavailable(  # by a policy that was replaced meanwhile
                f"No adapters are loaded by the servers of '{self._adapter.base}' any more.",
                code="adapter_unloaded",
                retry_after=1.0,
            )
        return residents

    def _left(self, call: Call) -> float:
        if call.deadline is None:
            return self._patience
        return max(min(self._patience, call.deadline - time.perf_counter()), 0.001)

    def _note(self, call: Call, began: float) -> None:
        waited = round(time.perf_counter() - began, 6)
        backend = call.target.backend if call.target is not None else ""
        call.receipt.note("adapter", id=self._adapter.id, backend=backend, waited=waited)
