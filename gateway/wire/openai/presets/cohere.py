"""Cohere's Compatibility API (https://docs.cohere.com/docs/compatibility-api), in front of its v2 API."""

from __future__ import annotations

from gateway.wire.openai.presets.preset import Preset

COHERE = Preset(
    name="Cohere",
    takes=frozenset({"frequency_penalty", "presence_penalty", "reasoning_effort", "seed"}),
    # To think or not to think is all that it knows.
    values={
        "reasoning_effort": {
            "minimal": "none",
            "low": "high",
            "medium": "high",
            "xhigh": "high",
        }
    },
    embeddings=frozenset({"encoding_format"}),
    apis={"rerank": "/v2/rerank"},  # beside the Compatibility API, not below it
)
