"""xAI (https://docs.x.ai/docs/api-reference). Which of its models take which parameter it says itself, with 400."""

from __future__ import annotations

from gateway.wire.openai.presets.preset import OPENAI, Preset

XAI = Preset(
    name="xAI",
    takes=OPENAI
    - {"audio", "logit_bias", "metadata", "modalities", "moderation", "prediction", "store", "verbosity"}
    - {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"},
    cap="max_completion_tokens",
    completions=True,
    apis={"image_generation": "images/generations"},
)
