"""The endpoint table: every path, and the few that need no key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.apis import Api
from gateway.children.process_pool import ProcessPool
from gateway.observe.metrics import Metrics
from gateway.policy.schema.limits import RequestLimits
from gateway.runtime.background_requests import BackgroundRequests
from gateway.types import ChatRequest
from gateway.version import version
from gateway.web.body_parser import BodyParser, BodyReader
from gateway.web.dialect import Spoken
from gateway.web.endpoints import health, requests
from gateway.web.endpoints.adapters import Adapters, OneAdapter
from gateway.web.endpoints.batches import Batches, CancelBatch, OneBatch
from gateway.web.endpoints.count_tokens import CountTokens
from gateway.web.endpoints.feedback import SendFeedback
from gateway.web.endpoints.files import File, FileContent, Files
from gateway.web.endpoints.generate import Generate
from gateway.web.endpoints.generate_content import CountTokens as CountContentTokens
from gateway.web.endpoints.generate_content import EmbedContent, GenerateContent
from gateway.web.endpoints.models import Models
from gateway.web.endpoints.moderations import Moderations
from gateway.web.endpoints.pass_through import PassThrough, form_reader, json_reader
from gateway.web.endpoints.response_inputs import Compact, CountInputTokens
from gateway.web.endpoints.responses import CreateResponse
from gateway.web.endpoints.stored_responses import StoredResponses
from gateway.web.heavy_reads import HeavyReads
from gateway.web.openapi import OpenApiPage
from gateway.web.operation import Operation
from gateway.web.operations import OPERATIONS
from gateway.web.operator_token import OperatorToken
from gateway.wire.anthropic import models as anthropic_models
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.anthropic.errors import error_body as anthropic_error
from gateway.wire.apis import images as api_images
from gateway.wire.apis import rerank as api_rerank
from gateway.wire.apis import score as api_score
from gateway.wire.apis import speech as api_speech
from gateway.wire.apis import tokens as api_tokens
from gateway.wire.dialect import Dialect, ErrorWriter
from gateway.wire.gemini import models as gemini_models
from gateway.wire.gemini.errors import error_body as gemini_error
from gateway.wire.openai import models as openai_models
from gateway.wire.openai.dialect import CHAT, COMPLETIONS, EMBEDDINGS
from gateway.wire.openai.errors import error_body as openai_error
from gateway.wire.responses.sealed import SummarySeal

OPERATORS = ("/healthz", "/readyz", "/metrics")
"""What the operator's port has."""
PUBLIC = ("/", "/healthz", "/readyz", "/metrics", "/openapi.json")


ERROR_WRITERS: Mapping[Spoken, ErrorWriter] = {
    "openai": openai_error,
    "anthropic": anthropic_error,
    "gemini": gemini_error,
}
"""Who renders errors in the dialect of a request's client."""


def build(
    metrics: Metrics,
    pool: ProcessPool,
    operator: OperatorToken,
    background: BackgroundRequests,
    summaries: SummarySeal,
    *,
    max_body: int,
    heartbeat: float,
    wake_batches: Callable[[], None] = lambda: None,
    documented: Iterable[Operation] = (),
    draining: Path | None = None,
    metrics_age: float = 1.0,
) -> list[Route]:
    """``documented`` are operations of other routes, which ``/openapi.json`` has, too."""
    reader, reads = BodyReader(BodyParser(pool), max_body=max_body), HeavyReads()

    def generating(dialect: Dialect) -> Generate:
        return Generate(dialect, reader, reads, heartbeat=heartbeat)

    def passing(read_request: Callable[[bytes, RequestLimits], ChatRequest]) -> PassThrough:
        return PassThrough(json_reader(read_request, reader), heartbeat=heartbeat)

    def uploading(api: Api) -> PassThrough:
        return PassThrough(form_reader(api, max_body=max_body), heartbeat=heartbeat)

    def googles(streams: bool) -> GenerateContent:
        return GenerateContent(reader, heartbeat=heartbeat, streams=streams)

    google: dict[str, ASGIApp] = {
        "generateContent": googles(False),
        "streamGenerateContent": googles(True),
        "countTokens": CountContentTokens(reader),
        "embedContent": EmbedContent(reader, batch=False),
        "batchEmbedContents": EmbedContent(reader, batch=True),
    }
    rerank = passing(api_rerank.read_request)
    create = CreateResponse(reader, background, reads, summaries, heartbeat=heartbeat)
    counting = CountInputTokens(reader, reads, summaries)
    compact = Compact(reader, reads, summaries)
    stored = StoredResponses(background, reads)
    models = Models({"openai": openai_models, "anthropic": anthropic_models, "gemini": gemini_models})
    return [
        Route("/v1/chat/completions", generating(CHAT), methods=["POST"]),
        Route("/v1/completions", generating(COMPLETIONS), methods=["POST"]),
        Route("/v1/embeddings", generating(EMBEDDINGS), methods=["POST"]),
        Route("/v1/moderations", Moderations(reader), methods=["POST"]),
        Route("/v1/audio/speech", passing(api_speech.read_request), methods=["POST"]),
        Route("/v1/audio/transcriptions", uploading("transcription"), methods=["POST"]),
        Route("/v1/audio/translations", uploading("translation"), methods=["POST"]),
        Route("/v1/images/edits", uploading("image_edit"), methods=["POST"]),
        Route("/v1/images/generations", passing(api_images.read_request), methods=["POST"]),
        Route("/v1/rerank", rerank, methods=["POST"]),
        Route("/v2/rerank", rerank, methods=["POST"]),
        Route("/v1/score", passing(api_score.read_request), methods=["POST"]),
        Route("/tokenize", passing(api_tokens.read_tokenize), methods=["POST"]),
        Route("/detokenize", passing(api_tokens.read_detokenize), methods=["POST"]),
        Route("/v1/messages", generating(AnthropicDialect()), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountTokens(reader), methods=["POST"]),
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/input_tokens", counting, methods=["POST"]),
        Route("/v1/responses/compact", compact, methods=["POST"]),
        Route("/v1/responses/{response_id}", stored.one, methods=["GET", "DELETE"]),
        Route("/v1/responses/{response_id}/cancel", stored.cancel, methods=["POST"]),
        Route("/v1/responses/{response_id}/input_items", stored.input_items),
        Route("/v1/files", Files(), methods=["GET", "POST"]),
        Route("/v1/files/{file_id}", File(), methods=["GET", "DELETE"]),
        Route("/v1/files/{file_id}/content", FileContent(), methods=["GET"]),
        Route("/v1/adapters", Adapters(), methods=["GET", "POST"]),
        Route("/v1/adapters/{adapter_id}", OneAdapter(), methods=["GET", "DELETE"]),
        Route("/v1/batches", Batches(wake_batches), methods=["GET", "POST"]),
        Route("/v1/batches/{batch_id}", OneBatch(), methods=["GET"]),
        Route("/v1/batches/{batch_id}/cancel", CancelBatch(wake_batches), methods=["POST"]),
        *(
            Route(f"/{version}/models/{{model:path}}:{method}", endpoint, methods=["POST"])
            for version in ("v1beta", "v1")
            for method, endpoint in google.items()
        ),
        Route("/v1beta/models", models.all),
        Route("/v1beta/models/{model:path}", models.one),
        Route("/v1/models", models.all),
        Route("/v1/models/{model:path}", models.one),
        Route("/v1/requests/{request_id}", requests.receipt),
        Route("/v1/requests/{request_id}/feedback", SendFeedback(metrics), methods=["POST"]),
        # Programs look whether anybody is there before they send a key: Claude Code does at each start.
        Route("/", health.healthz),
        Route("/healthz", health.healthz),
        Route("/readyz", health.ReadyPage(draining, operator).page),
        Route("/openapi.json", OpenApiPage((*OPERATIONS, *documented), version).page),
        Route("/metrics", health.MetricsPage(metrics, pool, operator, age=metrics_age).page),
    ]
