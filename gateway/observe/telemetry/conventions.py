"""What a request and its attempts are called in OpenTelemetry's conventions for generative AI.

Names are those of version 1.41 of https://github.com/open-telemetry/semantic-conventions; ``renamed`` gives those of
version 1.36, which older receivers know, or of the first release of
https://github.com/open-telemetry/semantic-conventions-genai, where they moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.policy.schema import (
    AnthropicBackend,
    AnyBackend,
    AzureBackend,
    BedrockBackend,
    EngineBackend,
    GeminiBackend,
    OpenAIBackend,
)
from gateway.policy.schema.telemetry import Conventions
from gateway.spans import Attributes, Value
from gateway.types import ChatRequest, Usage

PROVIDERS: Mapping[str, str] = {
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "amazonaws.com": "aws.bedrock",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.moonshot.ai": "moonshot_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
}
"""By the end of a host's name. Any other server of OpenAI's API is ``openai``, as its format is."""

_OLDEST_NAMES: Mapping[str, str | None] = {
    "gen_ai.provider.name": "gen_ai.system",
    "gen_ai.embeddings.dimension.count": None,
    "gen_ai.request.stream": None,
    "gen_ai.response.time_to_first_chunk": None,
    "gen_ai.usage.cache_read.input_tokens": None,
    "gen_ai.usage.cache_creation.input_tokens": None,
    "gen_ai.usage.reasoning.output_tokens": None,
}
_NEWEST_NAMES: Mapping[str, str | None] = {
    "gen_ai.usage.cache_creation.input_tokens": "gen_ai.usage.cache_write.input_tokens",
}
_NAMES: Mapping[Conventions, Mapping[str, str | None]] = {
    "v1.36": _OLDEST_NAMES,
    "v1.41": {},
    "genai-v0.1": _NEWEST_NAMES,
}
"""What has another name, or none, than in version 1.41."""
_OLDEST_SYSTEMS: Mapping[Value, str] = {
    "azure.ai.openai": "az.ai.openai",
    "azure.ai.inference": "az.ai.inference",
    "x_ai": "xai",
}

_NUMBERS: tuple[tuple[str, str, type[int] | type[float]], ...] = (
    ("temperature", "gen_ai.request.temperature", float),
    ("top_p", "gen_ai.request.top_p", float),
    ("top_k", "gen_ai.request.top_k", float),
    ("frequency_penalty", "gen_ai.request.frequency_penalty", float),
    ("presence_penalty", "gen_ai.request.presence_penalty", float),
    ("seed", "gen_ai.request.seed", int),
)
_MOST_STOPS, _LONGEST_STOP = 16, 64
_ENCODINGS = ("float", "base64")
_OUTPUTS = {"text": "text", "json_object": "json", "json_schema": "json"}


def operation(request: ChatRequest) -> str:
    if request.embeds:
        return "embeddings"
    if request.api is not None:
        return request.api
    return "chat" if request.messages is not None else "text_completion"


def provider(backend: AnyBackend) -> str:
    """``gen_ai.provider.name``: a well-known value, or ``tollgate`` for what is part of it."""
    match backend:
        case AnthropicBackend():
            return "anthropic"
        case AzureBackend():
            return "azure.ai.openai"
        case BedrockBackend():
            return "aws.bedrock"
        case GeminiBackend():
            return "gcp.gemini" if backend.vertex is None else "gcp.vertex_ai"
        case OpenAIBackend():
            host = urlsplit(backend.base_url).hostname or ""
        case _:
            return "tollgate"
    return next(
        (name for end, name in PROVIDERS.items() if host == end or host.endswith(f".{end}")), "openai"
    )


def server(backend: AnyBackend) -> Attributes:
    """Where a backend is; nothing for one inside the gateway."""
    match backend:
        case GeminiBackend() | BedrockBackend():
            url = backend.url
        case OpenAIBackend() | AzureBackend() | AnthropicBackend() | EngineBackend():
            url = backend.base_url
        case _:
            return {}
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}


def request_attributes(request: ChatRequest, model: str) -> Attributes:
    """What was asked of ``model``, without the prompt. Values of a wrong type, which servers refuse, are left out."""
    found: Attributes = {"gen_ai.operation.name": operation(request), "gen_ai.request.model": model}
    params = request.params
    for name, attribute, kind in _NUMBERS:
        value = params.get(name)
        if type(value) is int or (type(value) is float and kind is float):
            found[attribute] = kind(value)
    cap = params.get("max_completion_tokens", params.get("max_tokens"))
    if type(cap) is int:
        found["gen_ai.request.max_tokens"] = cap
    stops = params.get("stop")
    if isinstance(stops, str):
        stops = [stops]
    if isinstance(stops, list) and all(isinstance(stop, str) for stop in stops):
        found["gen_ai.request.stop_sequences"] = tuple(stop[:_LONGEST_STOP] for stop in stops[:_MOST_STOPS])
    if request.choices != 1 and request.generates:
        found["gen_ai.request.choice.count"] = request.choices
    if request.stream:
        found["gen_ai.request.stream"] = True
    if request.embeds:
        dimensions, encoding = params.get("dimensions"), params.get("encoding_format")
        if type(dimensions) is int:
            found["gen_ai.embeddings.dimension.count"] = dimensions
        if isinstance(encoding, str) and encoding in _ENCODINGS:
            found["gen_ai.request.encoding_formats"] = (encoding,)
    wanted = params.get("response_format")
    kind_wanted = wanted.get("type") if isinstance(wanted, Mapping) else None
    if isinstance(kind_wanted, str) and kind_wanted in _OUTPUTS:
        found["gen_ai.output.type"] = _OUTPUTS[kind_wanted]
    return found


def usage_attributes(usage: Usage) -> Attributes:
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": usage.completion,
    }
    if usage.cached:
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    if usage.cache_write:
        found["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_write
    if usage.reasoning:
        found["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning
    return found


def renamed(attributes: Attributes, conventions: Conventions) -> Attributes:
    """As ``conventions`` name them, without those that they do not know."""
    names = _NAMES[conventions]
    if not names:
        return attributes
    found: Attributes = {}
    for name, value in attributes.items():
        other = names.get(name, name)
        if other == "gen_ai.system":
            value = _OLDEST_SYSTEMS.get(value, value)
        elif name == "gen_ai.request.top_k" and conventions == "genai-v0.1" and isinstance(value, float):
            value = int(value)
        if other is not None:
            found[other] = value
    return found
