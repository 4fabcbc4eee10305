"""OpenRouter (https://openrouter.ai/docs/api-reference/overview). It takes what OpenAI does, and passes over
what the model that it asks does not."""

from __future__ import annotations

from gateway.wire.openai.presets.preset import Preset

OPENROUTER = Preset(
    name="OpenRouter",
    developer=True,
    completions=True,
    embeddings=frozenset({"dimensions", "encoding_format", "user"}),
    apis={"rerank": "rerank"},
)
