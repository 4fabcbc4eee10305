"""What requests for vectors, ranks and scores are answered with."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import orjson

from engine.server.pooling.bodies import RerankBody

_SLICE = 16
"""Vectors that are written at once: others get their turns between them."""


async def embeddings(model: str, vectors: Sequence[bytes], tokens: int, *, base64: bool) -> bytes:
    """``vectors`` are little-endian float32, which is OpenAI's base64 as well."""
    data = []
    for index, vector in enumerate(vectors):
        written: Any = b64encode(vector).decode() if base64 else orjson.Fragment(_numbers(vector))
        data.append({"object": "embedding", "index": index, "embedding": written})
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": _usage(tokens)})


def ranks(body: RerankBody, scores: Sequence[float], tokens: int) -> bytes:
    """The likeliest first; ``return_documents`` leaves the documents out where it is false, as Jina and Cohere have
    it."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    texts = None if body.return_documents is False else body.texts
    results = [
        {
            "index": index,
            **({} if texts is None else {"document": {"text": texts[index]}}),
            "relevance_score": scores[index],
        }
        for index in order
    ]
    identifier = f"rerank-{secrets.token_hex(12)}"
    return orjson.dumps({"id": identifier, "model": body.model, "usage": _usage(tokens), "results": results})


def scores_of_pairs(model: str, scores: Sequence[float], tokens: int) -> bytes:
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return orjson.dumps(
        {
            "id": f"score-{secrets.token_hex(12)}",
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": data,
            "usage": _usage(tokens),
        }
    )


def score(logit: bytes, *, sigmoid: bool) -> float:
    (value,) = array("f", logit)
    if not sigmoid:
        return value
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def _numbers(vector: bytes) -> bytes:
    return orjson.dumps(array("f", vector).tolist())


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
