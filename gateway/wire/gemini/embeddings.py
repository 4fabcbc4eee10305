"""``embedContent`` and ``batchEmbedContents`` (https://ai.google.dev/api/embeddings), with one answer for both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import orjson
from pydantic import Field

from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import Call, ChatRequest, Chunk, Json
from gateway.wire import json_body
from gateway.wire.gemini.contents_to_messages import Content, invalid
from gateway.wire.gemini.names import camel
from gateway.wire.openai.chat import Lenient

IGNORED = frozenset({"model", "taskType", "title"})
"""What the text is for, which no other provider's embeddings are asked with."""


class EmbedContentBody(Lenient):
    content: Content
    outputDimensionality: Annotated[int, Field(ge=1)] | None = None


class BatchEmbedContentsBody(Lenient):
    requests: Annotated[json_body.Items[EmbedContentBody], Field(min_length=1)]


def read_one(data: bytes, limits: RequestLimits = USUAL, *, model: str) -> ChatRequest:
    """Raises ``BadRequest``."""
    body = camel(json_body.read_json(data, limits, bounds={}, conversation=""))
    known = json_body.check(EmbedContentBody, body)
    return _request(model, [_text(body, "")], [known.outputDimensionality])


def read_batch(data: bytes, limits: RequestLimits = USUAL, *, model: str) -> ChatRequest:
    """Raises ``BadRequest``."""
    bounds = {"requests": "prompts"}
    body = camel(json_body.read_json(data, limits, bounds=bounds, conversation=""))
    known = json_body.check(BatchEmbedContentsBody, body)
    texts = [_text(one, f"requests[{i}].") for i, one in enumerate(body["requests"])]
    return _request(model, texts, [one.outputDimensionality for one in known.requests])


def _request(model: str, texts: list[str], dimensions: list[int | None]) -> ChatRequest:
    if len({*dimensions}) > 1:
        raise invalid("requests[].outputDimensionality", "should be the same in all of a batch")
    params: dict[str, Json] = {"encoding_format": "float"}
    if dimensions[0] is not None:
        params["dimensions"] = dimensions[0]
    return ChatRequest(model=model, prompt=texts, params=params, embeds=True)


def _text(body: Mapping[str, Json], where: str) -> str:
    for name in body:
        if name not in IGNORED and name not in EmbedContentBody.model_fields:
            raise invalid(f"{where}{name[:64]}", "is a field that is not known here; leave it out")
    texts = []
    for j, part in enumerate(body["content"].get("parts") or ()):
        if not isinstance(part.get("text"), str) or len(part) > 1:
            raise invalid(f"{where}content.parts[{j}]", "should be a text: nothing else is embedded here")
        texts.append(part["text"])
    if not "".join(texts):
        raise invalid(f"{where}content", "should hold a text")
    return "\n".join(texts)


class EmbeddingsWriter:
    """Collects the chunks of one answer."""

    def __init__(self, call: Call, *, batch: bool) -> None:
        self._call = call
        self._batch = batch
        self._vectors: dict[int, Json] = {}

    def add(self, chunk: Chunk) -> None:
        if chunk.delta is not None and "embedding" in chunk.delta:
            self._vectors[chunk.index] = {"values": chunk.delta["embedding"]}

    def body(self) -> bytes:
        vectors = [self._vectors[index] for index in sorted(self._vectors)]
        return orjson.dumps({"embeddings": vectors} if self._batch else {"embedding": vectors[0]})
