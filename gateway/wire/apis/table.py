"""Each API that is passed on: where servers have it, what is sent there, and what of it costs nothing beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.apis import Api
from gateway.types import ChatRequest, Json


@dataclass(frozen=True, slots=True)
class PassedApi:
    path: str
    """Below a provider's base URL."""
    text: str
    """The field of the body that the canonical form has as its prompt; empty where there is none."""
    known: frozenset[str]
    """Other fields, which cost no more than what is counted: a budget refuses what nobody knows."""

    def body(self, request: ChatRequest, model: str) -> dict[str, Json]:
        if request.messages is not None:
            return {"model": model, "messages": [*request.messages], **request.params}
        text = {self.text: request.prompt} if self.text else {}
        return {"model": model, **text, **request.params}


_AUDIO = frozenset(
    {
        *("chunking_strategy", "file", "include", "keywords", "known_speaker_names"),
        *("known_speaker_references", "language", "languages", "response_format", "stream", "temperature"),
        "timestamp_granularities",
    }
)
_IMAGES = frozenset(
    {
        *("background", "image", "input_fidelity", "mask", "moderation", "n", "output_compression"),
        *("partial_images", "quality", "response_format", "safety_identifier", "size", "stream", "style"),
        "user",
    }
)
APIS: Mapping[Api, PassedApi] = {
    "speech": PassedApi(
        "/audio/speech",
        "input",
        frozenset({"instructions", "response_format", "speed", "stream_format", "voice"}),
    ),
    "transcription": PassedApi("/audio/transcriptions", "prompt", _AUDIO),
    "translation": PassedApi("/audio/translations", "prompt", _AUDIO),
    "image_generation": PassedApi("/images/generations", "prompt", _IMAGES),
    "image_edit": PassedApi("/images/edits", "prompt", _IMAGES),
    "rerank": PassedApi(
        "/rerank",
        "query",
        frozenset(
            {
                *("documents", "max_chunks_per_doc", "max_tokens_per_doc", "priority", "rank_fields"),
                *("return_documents", "top_k", "top_n", "truncate_prompt_tokens", "truncation"),
            }
        ),
    ),
    "score": PassedApi(
        "/score",
        "text_1",
        frozenset({"instruction", "priority", "text_2", "truncate_prompt_tokens", "use_activation"}),
    ),
    "tokenize": PassedApi(
        "/tokenize",
        "prompt",
        frozenset(
            {
                *("add_generation_prompt", "add_special_tokens", "chat_template_kwargs"),
                *("continue_final_message", "count_only", "return_token_strs", "tools"),
            }
        ),
    ),
    "detokenize": PassedApi("/detokenize", "", frozenset({"tokens"})),
}
