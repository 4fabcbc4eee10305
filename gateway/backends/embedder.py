"""The sidecar's own sentence embedder, as a backend for ``/v1/embeddings``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from gateway.backends.clock import Clock
from gateway.backends.exchange import late
from gateway.backends.upstream_errors import Outage
from gateway.errors import BadRequest, GatewayError, UpstreamFailed, UpstreamUnavailable
from gateway.policy.schema import Target
from gateway.sidecar.api import Sidecar, SidecarBusy, SidecarDown, SidecarError, SidecarLoading
from gateway.types import Call, Chunk, Chunks
from gateway.wire import openai_embeddings

SLICE = 16
"""Texts that are given to the sidecar at once: a long request must not fill the queue that guards wait in."""
PROBE = 6.0
"""Seconds for one word."""


class EmbedderBackend:
    """A target's model name means nothing to it: the policy's ``sidecar`` says which embedder is loaded.

    It does not tell how many tokens it saw. Texts longer than the embedder's input are truncated.
    """

    def __init__(self, name: str, sidecar: Sidecar) -> None:
        self.name = name
        self._sidecar = sidecar
        self._outage = Outage()

    async def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest``, too, for what is not a text to embed."""
        params = call.request.params
        texts = self._texts(call)
        clock = Clock(call.timeouts, deadline=call.deadline)
        vectors: list[bytes] = []
        try:
            size = SLICE
            while len(vectors) < len(texts):
                asked = texts[len(vectors) : len(vectors) + size]
                try:
                    async with clock:
                        vectors += await self._sidecar.embed(asked)
                except SidecarBusy:
                    # There may be room for fewer; a small queue never has any for so many.
                    if len(asked) == 1:
                        raise
                    size = len(asked) // 2
                    continue
                clock.progress()
                self._check_dimensions(params.get("dimensions"), vectors[0])
        except SidecarError as error:
            raise self._translated(error) from error
        except TimeoutError:
            raise late(self.name, clock) from None
        finally:
            clock.close()
        self._outage.over()
        for index, vector in enumerate(vectors):
            last = index == len(vectors) - 1
            yield Chunk(
                index=index,
                delta={"embedding": openai_embeddings.write_vector(vector, params)},
                finish_reason="stop",
                more=not last,
            )
            if index % SLICE == SLICE - 1:
                await asyncio.sleep(0)

    async def probe(self) -> None:
        """Embed a word that was never seen before: what it has seen the sidecar may know by heart."""
        try:
            async with asyncio.timeout(PROBE):
                await self._sidecar.embed([f"ready {time.monotonic_ns()}"])
        except SidecarError as error:
            raise self._translated(error) from error
        except TimeoutError:
            raise UpstreamUnavailable(
                f"Backend '{self.name}' embeds nothing within {PROBE:g} s.", retry_after=self._outage.wait()
            ) from None
        self._outage.over()

    async def aclose(self) -> None:
        """The sidecar is the gateway's, and outlives a policy."""

    def _texts(self, call: Call) -> Sequence[str]:
        if not call.request.embeds:
            raise BadRequest(
                f"Backend '{self.name}' makes embeddings and answers nothing else. Send texts to /v1/embeddings.",
                param="model",
                code="unsupported_parameter",
            )
        inputs = openai_embeddings.inputs_of(call.request)
        texts = [one for one in inputs if isinstance(one, str)]
        if len(texts) < len(inputs):
            raise BadRequest(
                f"Backend '{self.name}' has a tokenizer of its own and takes no token ids. Send 'input' as text.",
                param="input",
                code="unsupported_parameter",
            )
        return texts

    def _check_dimensions(self, wanted: int | None, vector: bytes) -> None:
        if wanted is not None and wanted * 4 != len(vector):
            raise BadRequest(
                f"Backend '{self.name}' makes vectors of {len(vector) // 4} dimensions and no others. Leave "
                "'dimensions' out.",
                param="dimensions",
                code="unsupported_parameter",
            )

    def _translated(self, error: SidecarError) -> GatewayError:
        match error:
            case SidecarBusy():
                why = "has a full queue"
            case SidecarLoading():
                why = "has not loaded its model"
            case SidecarDown():
                why = "is being restarted"
            case _:
                return UpstreamFailed(f"Backend '{self.name}' could not embed the input. The log says why.")
        wait = self._outage.wait()
        return UpstreamUnavailable(
            f"Backend '{self.name}' {why}. Try again in {wait:.0f} s.", retry_after=wait
        )
