"""What answers of APIs that do not chat say that they used, as their providers write it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apis import Api, Units
from gateway.wire.apis.usage import read_usage


@pytest.mark.parametrize(
    ("api", "raw", "tokens", "units"),
    [
        # OpenAI: whisper-1, gpt-4o-transcribe, gpt-image-1
        ("transcription", {"usage": {"type": "duration", "seconds": 9}}, (0, 0), Units("second", 9)),
        ("transcription", {"text": "", "duration": "8.47", "language": "en"}, (0, 0), Units("second", 8.47)),
        (
            "transcription",
            {"usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}},
            (14, 45),
            None,
        ),
        (
            "image_generation",
            {
                "data": [{}, {}],
                "quality": "high",
                "size": "1024x1024",
                "usage": {"input_tokens": 5, "output_tokens": 9},
            },
            (5, 9),
            Units("image", 2, "high 1024x1024"),
        ),
        # Mistral
        (
            "transcription",
            {
                "usage": {
                    "prompt_audio_seconds": 203,
                    "prompt_tokens": 4,
                    "total_tokens": 3264,
                    "completion_tokens": 635,
                }
            },
            (2629, 635),
            Units("second", 203),
        ),
        # Cohere; Jina, Together and Novita; Voyage; OpenRouter
        ("rerank", {"meta": {"billed_units": {"search_units": 2}}}, (0, 0), Units("search", 2)),
        ("rerank", {"usage": {"prompt_tokens": 815, "total_tokens": 815}}, (815, 0), None),
        ("rerank", {"usage": {"total_tokens": 26}}, (26, 0), None),
        (
            "rerank",
            {"usage": {"search_units": 1, "total_tokens": 150, "cost": 0.001}},
            (150, 0),
            Units("search", 1),
        ),
    ],
)
def test_what_providers_tell(
    api: Api, raw: dict[str, Any], tokens: tuple[int, int], units: Units | None
) -> None:
    usage = read_usage(raw, api)
    assert usage is not None
    assert (usage.prompt, usage.completion, usage.units) == (*tokens, units)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"usage": None},
        {"usage": []},
        {"usage": {"seconds": -1}},
        {"usage": {"seconds": "nan"}},
        {"usage": {"seconds": 1e300}},
        {"usage": {"seconds": True}},
        {"usage": {"input_tokens": 10**12}},
        {"duration": "soon"},
    ],
)
def test_what_nobody_believes(raw: dict[str, Any]) -> None:
    assert read_usage(raw, "transcription") is None


def test_tokens_of_sound_are_told_apart() -> None:
    told = {
        "input_tokens": 20,
        "output_tokens": 1,
        "input_token_details": {"audio_tokens": 14, "text_tokens": 6},
    }
    usage = read_usage({"usage": told}, "transcription")
    assert usage is not None
    assert usage.audio == 14
