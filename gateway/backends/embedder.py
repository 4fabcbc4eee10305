"""The sidecar's own sentence embedder, as a backend for ``/v1/embeddings``."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from struct import Struct

from gateway.backends.exchange import late
from gateway.backends.openai_errors import Outage
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.backends.token_ids import TokenIds, UnknownToken
from gateway.errors import BadRequest, GatewayError, UpstreamFailed, UpstreamUnavailable
from gateway.policy.schema import Target
from gateway.sidecar.api import Sidecar, SidecarBusy, SidecarDown, SidecarError, SidecarLoading
from gateway.types import Call, Chunk, Chunks, Json
from gateway.wire.openai import embeddings as openai_embeddings

SLICE = 16
"""Texts that are given to the sidecar at once: a long request must not fill the queue that guards wait in."""
PROBE = 6.0
"""Seconds for one text."""


class EmbedderBackend:
    """A target's model name means nothing to it: the policy's ``sidecar`` says which embedder is loaded.

    It does not report token counts. Texts longer than the embedder's input are truncated.
    """

    def __init__(
        self,
        name: str,
        sidecar: Sidecar,
        *,
        matryoshka: bool = False,
        load_token_ids: Callable[[], TokenIds | None] = TokenIds.load,
    ) -> None:
        """``matryoshka``: a vector's prefix is a good vector, too (https://arxiv.org/abs/2205.13147).

        ``load_token_ids`` is called once, in a thread, when token ids are first to be read.
        """
        self.name = name
        self._sidecar = sidecar
        self._matryoshka = matryoshka
        self._load_token_ids = load_token_ids
        self._token_ids: asyncio.Task[TokenIds | None] | None = None
        self._outage = Outage()

    async def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest``, too, for what is not a text to embed."""
        params = call.request.params
        texts = await self._texts(call)
        timeouts = UpstreamTimeouts(call.timeouts, deadline=call.deadline)
        vectors: list[bytes] = []
        call.leaves()
        try:
            size = SLICE
            while len(vectors) < len(texts):
                asked = texts[len(vectors) : len(vectors) + size]
                try:
                    with timeouts:
                        vectors += await self._sidecar.embed(asked)
                except SidecarBusy:
                    # The queue may take fewer; a small one never takes so many.
                    if len(asked) == 1:
                        raise
                    size = len(asked) // 2
                    continue
                timeouts.progress()
                self._check_dimensions(params.get("dimensions"), vectors[0])
        except SidecarError as error:
            raise self._translated(error) from error
        except TimeoutError:
            raise late(self.name, timeouts) from None
        finally:
            timeouts.close()
        self._outage.over()
        for index, vector in enumerate(vectors):
            last = index == len(vectors) - 1
            yield Chunk(
                index=index,
                delta={"embedding": openai_embeddings.write_vector(self._cut(vector, params), params)},
                finish_reason="stop",
                more=not last,
            )
            if index % SLICE == SLICE - 1:
                await asyncio.sleep(0)

    async def probe(self) -> None:
        """Embed a text never seen before: the sidecar may have others cached."""
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

    async def _texts(self, call: Call) -> Sequence[str]:
        if not call.request.embeds:
            raise BadRequest(
                f"Backend '{self.name}' makes embeddings and answers nothing else. Send texts to /v1/embeddings.",
                param="model",
                code="unsupported_parameter",
            )
        inputs = openai_embeddings.inputs_of(call.request)
        texts = [one for one in inputs if isinstance(one, str)]
        return texts if len(texts) == len(inputs) else await self._decoded(inputs)

    async def _decoded(self, inputs: Sequence[str | list[int]]) -> Sequence[str]:
        if self._token_ids is None:
            self._token_ids = asyncio.create_task(asyncio.to_thread(self._load_token_ids))
        # Whoever asked first may leave; others wait for the same.
        token_ids = await asyncio.shield(self._token_ids)
        if token_ids is None:
            raise BadRequest(
                f"Backend '{self.name}' has a tokenizer of its own, and the encoding to read token ids with "
                "(cl100k_base) is not on the gateway's machine. Send 'input' as text: with LangChain's "
                "OpenAIEmbeddings(check_embedding_ctx_length=False). Or let the operator put it there: "
                "'pip install bpe-openai', or a folder of tiktoken's named by TIKTOKEN_CACHE_DIR.",
                param="input",
                code="unsupported_parameter",
            )
        try:
            return [one if isinstance(one, str) else token_ids.text(one) for one in inputs]
        except UnknownToken as error:
            raise BadRequest(
                f"'input' is read as token ids of cl100k_base, and {error}. Send text instead.",
                param="input",
                code="invalid_value",
            ) from None

    def _check_dimensions(self, wanted: int | None, vector: bytes) -> None:
        has = len(vector) // 4
        if wanted is None or wanted == has or (self._matryoshka and wanted < has):
            return
        others = "and fewer" if self._matryoshka else "and no others: its model is not known to bear cutting"
        raise BadRequest(
            f"Backend '{self.name}' makes vectors of {has} dimensions {others}. Leave 'dimensions' out.",
            param="dimensions",
            code="unsupported_parameter",
        )

    def _cut(self, vector: bytes, params: Mapping[str, Json]) -> bytes:
        """The first ``dimensions`` of a vector, of length 1 again."""
        wanted = params.get("dimensions")
        if wanted is None or wanted * 4 == len(vector):
            return vector
        numbers = Struct(f"<{wanted}f").unpack_from(vector)
        length = math.hypot(*numbers) or 1.0
        return Struct(f"<{wanted}f").pack(*(number / length for number in numbers))

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
