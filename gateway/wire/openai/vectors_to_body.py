"""Chunks to the body of ``/v1/embeddings``, with all vectors in it."""

from __future__ import annotations

import orjson

from gateway.types import Call, Chunk, Usage


class VectorsWriter:
    """Collects the chunks of one answer. Each vector is written at once, so that no long piece of work is left."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._written: dict[int, bytes] = {}
        self._usage: Usage | None = None

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.delta is not None and "embedding" in chunk.delta:
            vector = {"object": "embedding", "index": chunk.index, "embedding": chunk.delta["embedding"]}
            self._written[chunk.index] = orjson.dumps(vector)

    def body(self) -> bytes:
        call = self._call
        tokens = self._usage.prompt if self._usage is not None else call.expected_prompt
        rest = {
            "model": call.candidate.model if call.candidate else call.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        first, *others = [self._written[index] for index in sorted(self._written)] or [b""]
        # Put together once: it can be tens of megabytes.
        separated = (piece for vector in others for piece in (b",", vector))
        return b"".join((b'{"object":"list","data":[', first, *separated, b"],", orjson.dumps(rest)[1:]))
