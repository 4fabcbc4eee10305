"""What every path takes and gives, beside its route (``gateway.web.routes``): the types are those that check it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from gateway.adapters.wire_form import CreateAdapterBody
from gateway.batches.wire_form import BatchPage, CreateBatchBody
from gateway.web.endpoints.feedback import FeedbackBody, WrittenFeedback
from gateway.web.operation import EVENTS, FORM, JSON, Operation
from gateway.wire.anthropic.body_to_request import CountBody, MessagesBody
from gateway.wire.apis.forms import ImageEditForm, TranscriptionForm
from gateway.wire.apis.images import ImageBody
from gateway.wire.apis.rerank import RerankBody
from gateway.wire.apis.score import ScoreBody
from gateway.wire.apis.speech import SpeechBody
from gateway.wire.apis.tokens import DetokenizeBody, TokenizeBody
from gateway.wire.gemini.body_to_request import CountTokensBody, GenerateContentBody
from gateway.wire.gemini.embeddings import BatchEmbedContentsBody, EmbedContentBody
from gateway.wire.openai.chat import ChatBody
from gateway.wire.openai.completions import CompletionBody
from gateway.wire.openai.embeddings import EmbeddingsBody
from gateway.wire.openai.files import ListQuery, UploadBody
from gateway.wire.openai.moderations import ModerationsBody
from gateway.wire.responses.body import CountBody as ResponsesCountBody
from gateway.wire.responses.body import CreateBody, InputBody

_GOOGLE = "/v1beta/models/{model:path}"
_MODEL = (400, 404, 413, 415, 429, 502, 503, 504)
"""What asking a model may end in, besides what every path may."""


class Receipt(BaseModel):
    """What happened to one request, noted by the stages; times are seconds since it arrived."""

    id: str
    object: str
    created: float
    """Unix time."""
    stages: dict[str, dict[str, Any]]


class AltQuery(BaseModel):
    alt: str | None = None
    """``sse`` for events; a JSON array otherwise."""


class State(BaseModel):
    """``backends``, ``models`` and what is waited for are the operator's to see."""

    model_config = ConfigDict(extra="allow")
    status: str


def _google(method: str, summary: str, body: type[BaseModel], *, streams: bool = False) -> Operation:
    return Operation(
        *("POST", f"{_GOOGLE}:{method}", f"google{method[0].upper()}{method[1:]}", summary, "models"),
        answers={JSON: None, EVENTS: None} if streams else {JSON: None},
        query=AltQuery if streams else None,
        body=body,
        errors=_MODEL,
    )


OPERATIONS = (
    Operation(
        *(
            "POST",
            "/v1/chat/completions",
            "createChatCompletion",
            "Answer a conversation, as OpenAI does",
            "models",
        ),
        *({JSON: None, EVENTS: None}, 200, None, ChatBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/completions", "createCompletion", "Continue a text, as OpenAI does", "models"),
        *({JSON: None, EVENTS: None}, 200, None, CompletionBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/messages", "createMessage", "Answer a conversation, as Anthropic does", "models"),
        *({JSON: None, EVENTS: None}, 200, None, MessagesBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/messages/count_tokens", "countTokens", "How many tokens a conversation has", "models"),
        *({JSON: None}, 200, None, CountBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/embeddings", "createEmbedding", "Vectors of texts", "models"),
        *({JSON: None}, 200, None, EmbeddingsBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/audio/speech", "createSpeech", "Speak a text", "models"),
        *({"application/octet-stream": None, EVENTS: None}, 200, None, SpeechBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/audio/transcriptions", "createTranscription", "Write down what is said", "models"),
        *({JSON: None, "text/plain": None, EVENTS: None}, 200, None, TranscriptionForm, _MODEL),
        takes=FORM,
    ),
    Operation(
        *("POST", "/v1/audio/translations", "createTranslation", "The same, in English", "models"),
        *({JSON: None, "text/plain": None}, 200, None, TranscriptionForm, _MODEL),
        takes=FORM,
    ),
    Operation(
        *("POST", "/v1/images/edits", "createImageEdit", "Change pictures", "models"),
        *({JSON: None, EVENTS: None}, 200, None, ImageEditForm, _MODEL),
        takes=FORM,
    ),
    Operation(
        *("POST", "/v1/images/generations", "createImage", "Draw pictures", "models"),
        *({JSON: None, EVENTS: None}, 200, None, ImageBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/rerank", "rerank", "Rank documents, as Jina and Cohere do", "models"),
        *({JSON: None}, 200, None, RerankBody, _MODEL),
    ),
    Operation(
        *("POST", "/v2/rerank", "rerankV2", "The same, where Cohere's clients look for it", "models"),
        *({JSON: None}, 200, None, RerankBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/score", "score", "How well pairs of texts fit, as vLLM does", "models"),
        *({JSON: None}, 200, None, ScoreBody, _MODEL),
    ),
    Operation(
        *("POST", "/tokenize", "tokenize", "The token ids of a prompt, as vLLM does", "models"),
        *({JSON: None}, 200, None, TokenizeBody, _MODEL),
    ),
    Operation(
        *("POST", "/detokenize", "detokenize", "The text of token ids, as vLLM does", "models"),
        *({JSON: None}, 200, None, DetokenizeBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/moderations", "createModeration", "What the toxicity guard makes of texts", "models"),
        *({JSON: None}, 200, None, ModerationsBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/responses", "createResponse", "Answer, as OpenAI's Responses API does", "models"),
        *({JSON: None, EVENTS: None}, 200, None, CreateBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/responses/input_tokens", "countInputTokens", "How many tokens an input has", "models"),
        *({JSON: None}, 200, None, ResponsesCountBody, _MODEL),
    ),
    Operation(
        *("POST", "/v1/responses/compact", "compactResponse", "Sum a conversation up", "models"),
        *({JSON: None}, 200, None, InputBody, _MODEL),
    ),
    Operation(
        *("GET", "/v1/responses/{response_id}", "retrieveResponse", "A stored response", "models"),
        *({JSON: None, EVENTS: None},),
        errors=(400, 404, 503),
    ),
    Operation(
        *("DELETE", "/v1/responses/{response_id}", "deleteResponse", "Forget a stored response", "models"),
        errors=(404, 503),
    ),
    Operation(
        *(
            "POST",
            "/v1/responses/{response_id}/cancel",
            "cancelResponse",
            "End one in the background",
            "models",
        ),
        errors=(404, 503),
    ),
    Operation(
        *("GET", "/v1/responses/{response_id}/input_items", "listInputItems", "What it was asked", "models"),
        errors=(400, 404, 503),
    ),
    Operation(
        *("POST", "/v1/files", "createFile", "Upload a file", "files", {JSON: None}, 200, None, UploadBody),
        errors=(404, 429),
        takes=FORM,
    ),
    Operation(
        *("GET", "/v1/files", "listFiles", "The tenant's files", "files", {JSON: None}, 200, ListQuery),
        errors=(404, 429),
    ),
    Operation("GET", "/v1/files/{file_id}", "retrieveFile", "One of them", "files", errors=(404, 429)),
    Operation("DELETE", "/v1/files/{file_id}", "deleteFile", "Delete it", "files", errors=(404, 429)),
    Operation(
        *("GET", "/v1/files/{file_id}/content", "downloadFile", "What it holds", "files"),
        *({"application/octet-stream": None},),
        errors=(404, 429),
    ),
    Operation(
        *("POST", "/v1/adapters", "createAdapter", "Make two files a LoRA adapter", "adapters", {JSON: None}),
        *(200, None, CreateAdapterBody),
        errors=(404, 409, 429),
    ),
    Operation(
        "GET", "/v1/adapters", "listAdapters", "Those that the tenant may ask", "adapters", errors=(404, 429)
    ),
    Operation(
        *("GET", "/v1/adapters/{adapter_id}", "retrieveAdapter", "One of them", "adapters"), errors=(404, 429)
    ),
    Operation(
        *("DELETE", "/v1/adapters/{adapter_id}", "deleteAdapter", "Delete it", "adapters"), errors=(404, 429)
    ),
    Operation(
        *(
            "POST",
            "/v1/batches",
            "createBatch",
            "Have a file of requests answered",
            "batches",
            {JSON: None},
            200,
        ),
        *(None, CreateBatchBody),
        errors=(404, 429),
    ),
    Operation(
        *(
            "GET",
            "/v1/batches",
            "listBatches",
            "The tenant's batches",
            "batches",
            {JSON: None},
            200,
            BatchPage,
        ),
        errors=(429,),
    ),
    Operation("GET", "/v1/batches/{batch_id}", "retrieveBatch", "One of them", "batches", errors=(404, 429)),
    Operation(
        *("POST", "/v1/batches/{batch_id}/cancel", "cancelBatch", "End it with what is done", "batches"),
        errors=(404, 409, 429),
    ),
    _google("generateContent", "Answer a conversation, as Google does", GenerateContentBody),
    _google("streamGenerateContent", "The same as a stream", GenerateContentBody, streams=True),
    _google("countTokens", "How many tokens contents have", CountTokensBody),
    _google("embedContent", "The vector of a text, as Google has it", EmbedContentBody),
    _google("batchEmbedContents", "Those of several", BatchEmbedContentsBody),
    Operation("GET", "/v1beta/models", "listGoogleModels", "The models, as Google lists them", "models"),
    Operation("GET", _GOOGLE, "retrieveGoogleModel", "One of them", "models", errors=(404,)),
    Operation("GET", "/v1/models", "listModels", "The models that the key may use", "models"),
    Operation("GET", "/v1/models/{model:path}", "retrieveModel", "One of them", "models", errors=(404,)),
    Operation(
        *("GET", "/v1/requests/{request_id}", "retrieveReceipt", "What happened to a request", "models"),
        *({JSON: Receipt},),
        errors=(404, 503),
    ),
    Operation(
        *(
            "POST",
            "/v1/requests/{request_id}/feedback",
            "sendFeedback",
            "What you think of its answer",
            "models",
        ),
        *({JSON: WrittenFeedback},),
        body=FeedbackBody,
        errors=(404, 413, 429, 503),
    ),
    Operation(
        *("GET", "/healthz", "health", "Whether the process is alive", "operations", {JSON: State}),
        scope=None,
    ),
    Operation(
        *("GET", "/readyz", "readiness", "Whether it can serve", "operations", {JSON: State}),
        errors=(404,),
        unready=State,
        scope=None,
    ),
    Operation(
        *("GET", "/metrics", "metrics", "Its metrics, for Prometheus", "operations", {"text/plain": None}),
        errors=(503,),
        scope="metrics",
    ),
    Operation("GET", "/openapi.json", "openapi", "This document", "operations", scope=None),
)
