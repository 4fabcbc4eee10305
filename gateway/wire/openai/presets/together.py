"""Together (https://docs.together.ai/reference/chat-completions-1). Its log-probabilities have a form of their own,
which clients of OpenAI's could not read: they are refused."""

from __future__ import annotations

from gateway.wire.openai.presets.preset import Preset

TOGETHER = Preset(
    name="Together",
    takes=frozenset(
        {
            *("frequency_penalty", "function_call", "logit_bias", "n", "presence_penalty"),
            *("reasoning_effort", "seed"),
        }
    ),
    completions=True,
    embeddings=frozenset(),
    apis={
        "speech": "audio/speech",
        "transcription": "audio/transcriptions",
        "translation": "audio/translations",
        "image_generation": "images/generations",
        "rerank": "rerank",
    },
)
