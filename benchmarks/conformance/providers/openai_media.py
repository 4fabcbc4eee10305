"""OpenAI's sound and pictures, scripted (https://platform.openai.com/docs/api-reference/audio, …/images), and the ranks
of servers that speak its API (https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html#re-rank-api)."""

from __future__ import annotations

import orjson
from openai.types import image_generate_params
from openai.types.audio import speech_create_params
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.openai_edge import CREATED, Refused, check_key, json, known, read

SOUND = b"ID3\x04\x00\x00\x00\x00\x00\x00" + bytes(90)
PICTURE = "iVBORw0KGgo="


async def speech(request: Request) -> Response:
    asked = await read(request, speech_create_params.SpeechCreateParams)
    if not asked.get("input") or not asked.get("voice"):
        raise Refused(
            400, "Missing required parameter: 'voice'.", param="voice", code="missing_required_parameter"
        )
    return Response(SOUND, media_type="audio/mpeg")


async def transcription(request: Request) -> Response:
    check_key(request)
    form = await request.form()
    known(str(form.get("model")))
    file = form.get("file")
    if file is None or isinstance(file, str):
        raise Refused(
            400, "Missing required parameter: 'file'.", param="file", code="missing_required_parameter"
        )
    if not await file.read():
        raise Refused(
            400, "The audio file could not be decoded or its format is not supported.", param="file"
        )
    usage = {"type": "duration", "seconds": 1}
    return json({"text": said.TEXT, "usage": usage})


async def picture(request: Request) -> Response:
    asked = await read(request, image_generate_params.ImageGenerateParamsBase)
    if not asked.get("prompt"):
        raise Refused(
            400, "Missing required parameter: 'prompt'.", param="prompt", code="missing_required_parameter"
        )
    return json({"created": CREATED, "data": [{"b64_json": PICTURE} for _ in range(asked.get("n") or 1)]})


async def ranks(request: Request) -> Response:
    check_key(request)
    asked = orjson.loads(await request.body())
    model, texts = known(asked["model"]), asked["documents"]
    results = [
        {"index": i, "document": {"text": text}, "relevance_score": 1 / (i + 1)}
        for i, text in enumerate(texts)
    ]
    return json(
        {"id": f"rerank-{said.new_id()}", "model": model, "usage": {"total_tokens": 8}, "results": results}
    )
