"""DeepSeek (https://api-docs.deepseek.com/api/create-chat-completion). What it does not know it passes over, unsaid."""

from __future__ import annotations

from gateway.wire.openai.presets.preset import Preset

DEEPSEEK = Preset(
    name="DeepSeek",
    takes=frozenset(
        {
            *("frequency_penalty", "logprobs", "presence_penalty", "reasoning_effort", "stream_options"),
            "top_logprobs",
        }
    ),
    schemas=False,
)
