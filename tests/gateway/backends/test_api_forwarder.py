"""Where providers have APIs that do not chat."""

from __future__ import annotations

import pytest

from gateway.apis import Api
from gateway.backends.api_forwarder import OF_ENGINE, located, paths_of
from gateway.wire.openai.presets.table import PRESETS

OPENAI, VLLM = "https://api.openai.com/v1", "http://10.0.0.7:8000/v1/"
GROQ, TOGETHER = "https://api.groq.com/openai/v1", "https://api.together.xyz/v1"


@pytest.mark.parametrize(
    ("base_url", "paths", "api", "url"),
    [
        (OPENAI, paths_of(OPENAI), "transcription", f"{OPENAI}/audio/transcriptions"),
        (OPENAI, paths_of(OPENAI), "image_edit", f"{OPENAI}/images/edits"),
        (OPENAI, paths_of(OPENAI), "rerank", None),
        (OPENAI, paths_of(OPENAI), "tokenize", None),
        (VLLM, paths_of(VLLM), "rerank", "http://10.0.0.7:8000/v1/rerank"),
        (VLLM, paths_of(VLLM), "score", "http://10.0.0.7:8000/v1/score"),
        (OPENAI, paths_of(OPENAI), "score", None),
        ("http://127.0.0.1:8100", OF_ENGINE, "score", "http://127.0.0.1:8100/v1/score"),
        (VLLM, paths_of(VLLM), "tokenize", "http://10.0.0.7:8000/tokenize"),
        ("http://127.0.0.1:8100", OF_ENGINE, "detokenize", "http://127.0.0.1:8100/detokenize"),
        ("http://127.0.0.1:8100", OF_ENGINE, "rerank", "http://127.0.0.1:8100/v1/rerank"),
        ("http://127.0.0.1:8100", OF_ENGINE, "speech", None),
        (GROQ, PRESETS["groq"].apis, "translation", f"{GROQ}/audio/translations"),
        (GROQ, PRESETS["groq"].apis, "image_generation", None),
        (TOGETHER, PRESETS["together"].apis, "rerank", f"{TOGETHER}/rerank"),
        (
            "https://api.mistral.ai/v1",
            PRESETS["mistral"].apis,
            "transcription",
            "https://api.mistral.ai/v1/audio/transcriptions",
        ),
        (
            "https://api.cohere.ai/compatibility/v1",
            PRESETS["cohere"].apis,
            "rerank",
            "https://api.cohere.ai/v2/rerank",
        ),
        (
            "https://openrouter.ai/api/v1",
            PRESETS["openrouter"].apis,
            "rerank",
            "https://openrouter.ai/api/v1/rerank",
        ),
        (
            "https://api.x.ai/v1",
            PRESETS["xai"].apis,
            "image_generation",
            "https://api.x.ai/v1/images/generations",
        ),
        ("https://api.deepseek.com", PRESETS["deepseek"].apis, "speech", None),
    ],
)
def test_where(base_url: str, paths: dict[Api, str], api: Api, url: str | None) -> None:
    endpoint = located(base_url, paths)(api, "m")
    assert (endpoint.url if endpoint is not None else None) == url
