"""Ranking of documents: Cohere's v2 (https://docs.cohere.com/reference/rerank) and Jina's
(https://jina.ai/reranker) forms, of which vLLM and others take both."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient


class RerankBody(Lenient):
    model: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[json_body.Items[str | dict[str, Any]], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None


_OWN = frozenset({"model", "query"})
_BOUNDS = {"documents": "prompts"}


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``. Documents stay where they are, among the parameters, as whatever objects they are."""
    raw = json_body.read_json(data, limits, bounds=_BOUNDS)
    known = json_body.check(RerankBody, raw)
    return ChatRequest(
        model=known.model,
        prompt=known.query,
        params={name: value for name, value in raw.items() if name not in _OWN},
        api="rerank",
    )
