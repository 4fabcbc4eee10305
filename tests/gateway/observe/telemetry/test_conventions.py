from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.observe.telemetry.conventions import provider, renamed, server
from gateway.policy.schema import Backend

BACKENDS = {
    "openai": ({"kind": "openai", "base_url": "https://api.openai.com/v1"}, "openai", "api.openai.com"),
    "local": ({"kind": "openai", "base_url": "http://10.0.0.7:8001/v1"}, "openai", "10.0.0.7"),
    "groq": ({"kind": "openai", "base_url": "https://api.groq.com/openai/v1"}, "groq", "api.groq.com"),
    "lookalike": (
        {"kind": "openai", "base_url": "https://notapi.groq.com/v1"},
        "openai",
        "notapi.groq.com",
    ),
    "azure": (
        {"kind": "azure", "base_url": "https://mine.openai.azure.com"},
        "azure.ai.openai",
        "mine.openai.azure.com",
    ),
    "anthropic": ({"kind": "anthropic"}, "anthropic", "api.anthropic.com"),
    "gemini": ({"kind": "gemini"}, "gcp.gemini", "generativelanguage.googleapis.com"),
    "vertex": (
        {"kind": "gemini", "vertex": {"project": "p", "location": "europe-west1"}},
        "gcp.vertex_ai",
        "europe-west1-aiplatform.googleapis.com",
    ),
    "bedrock": (
        {"kind": "bedrock", "aws": {"region": "eu-central-1"}},
        "aws.bedrock",
        "bedrock-runtime.eu-central-1.amazonaws.com",
    ),
    "engine": ({"kind": "engine"}, "tollgate", "127.0.0.1"),
    "fake": ({"kind": "fake", "script": [{}]}, "tollgate", None),
}


@pytest.mark.parametrize(("config", "name", "address"), BACKENDS.values(), ids=BACKENDS)
def test_each_kind_of_backend_has_its_providers_well_known_name(
    config: dict[str, Any], name: str, address: str | None
) -> None:
    backend = TypeAdapter(Backend).validate_python(config)
    assert provider(backend) == name
    found = server(backend)
    assert found.get("server.address") == address
    assert ("server.port" in found) == (address is not None)


def test_versions_have_their_own_names() -> None:
    told = {
        "gen_ai.provider.name": "x_ai",
        "gen_ai.request.top_k": 3.0,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "tollgate.backend": "b",
    }
    assert renamed(dict(told), "v1.41") == told
    assert renamed(dict(told), "v1.36") == {
        "gen_ai.system": "xai",
        "gen_ai.request.top_k": 3.0,
        "gen_ai.usage.input_tokens": 5,
        "tollgate.backend": "b",
    }
    newest = renamed(dict(told), "genai-v0.1")
    assert newest["gen_ai.usage.cache_write.input_tokens"] == 2
    assert "gen_ai.usage.cache_creation.input_tokens" not in newest
    assert type(newest["gen_ai.request.top_k"]) is int
