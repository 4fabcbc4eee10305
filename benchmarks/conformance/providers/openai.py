"""OpenAI's API, scripted (https://platform.openai.com/docs/api-reference): chat, completions, embeddings, models.

python -m benchmarks.conformance.providers.openai PORT
"""

from __future__ import annotations

import base64
import struct
import sys

import uvicorn
from openai.types import embedding_create_params
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.conformance.providers import openai_media as media
from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.openai_chat import chat
from benchmarks.conformance.providers.openai_completions import completions
from benchmarks.conformance.providers.openai_edge import (
    CREATED,
    EMBEDDER,
    KEY,
    MODEL,
    Json,
    Refused,
    check_key,
    json,
    known,
    read,
    refusing,
)

MOST_DIMENSIONS = 1536

__all__ = ["EMBEDDER", "KEY", "MODEL", "app"]


def app() -> Starlette:
    served = Starlette(
        routes=[
            Route("/v1/chat/completions", refusing(chat), methods=["POST"]),
            Route("/v1/completions", refusing(completions), methods=["POST"]),
            Route("/v1/embeddings", refusing(_embeddings), methods=["POST"]),
            Route("/v1/audio/speech", refusing(media.speech), methods=["POST"]),
            Route("/v1/audio/transcriptions", refusing(media.transcription), methods=["POST"]),
            Route("/v1/images/generations", refusing(media.picture), methods=["POST"]),
            Route("/v1/rerank", refusing(media.ranks), methods=["POST"]),
            Route("/v1/models", refusing(_models)),
            Route("/v1/models/{model}", refusing(_model)),
        ]
    )
    served.state.heard = set()
    return served


async def _embeddings(request: Request) -> Response:
    asked = await read(request, embedding_create_params.EmbeddingCreateParams)
    texts = asked.get("input")
    if not texts:
        raise Refused(
            400,
            "'$.input' is invalid. Please check the API reference: https://platform.openai.com/docs/api-reference.",
        )
    inputs = texts if isinstance(texts, list) and not isinstance(texts[0], int) else [texts]
    length = asked.get("dimensions", 8)
    if not 1 <= length <= MOST_DIMENSIONS:
        message = f"Invalid value for 'dimensions' = {length}. Must be between 1 and {MOST_DIMENSIONS}."
        raise Refused(400, message, param="dimensions")
    vector = [1 / length**0.5] * length
    packed = base64.b64encode(struct.pack(f"<{length}f", *vector)).decode()
    told = packed if asked.get("encoding_format") == "base64" else vector
    data = [{"object": "embedding", "index": i, "embedding": told} for i in range(len(inputs))]
    tokens = said.count(texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json({"object": "list", "data": data, "model": asked["model"], "usage": usage})


async def _models(request: Request) -> Response:
    check_key(request)
    return json({"object": "list", "data": [_model_info(MODEL), _model_info(EMBEDDER)]})


async def _model(request: Request) -> Response:
    check_key(request)
    return json(_model_info(known(request.path_params["model"])))


def _model_info(model: str) -> Json:
    return {"id": model, "object": "model", "created": CREATED, "owned_by": "system"}


if __name__ == "__main__":
    uvicorn.run(app(), port=int(sys.argv[1]), log_level="warning")
