"""What answers of these APIs say that they used: tokens, seconds, searches, pictures, in each provider's own words."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from gateway.apis import Api, Units
from gateway.types import Json, Usage
from gateway.wire.token_counts import counted


def read_usage(raw: Mapping[str, Json], api: Api) -> Usage | None:
    """Of an answer, or of an event of one. None where nothing is told that can be believed.

    OpenAI: ``usage`` by tokens (``input_tokens``) or by ``seconds``; Mistral: ``prompt_audio_seconds`` beside tokens;
    whisper's verbose answers: ``duration``. Cohere: ``meta.billed_units.search_units``; Jina, Voyage, vLLM:
    ``usage.total_tokens``; OpenRouter: ``usage.search_units``.
    """
    told = _mapping(raw.get("usage"))
    billed = _mapping(_mapping(raw.get("meta")).get("billed_units"))
    units = _units(raw, told, billed, api)
    tokens = _tokens(told) or _tokens(billed)
    if units is None and not tokens:
        return None
    prompt, answer, cached = tokens or (0, 0, 0)
    sound = counted(_details(told).get("audio_tokens")) or 0
    more = {"prompt_tokens_details": {"audio_tokens": sound}} if sound else None
    usage = Usage(prompt, answer, cached, more=more, units=units)
    return usage if usage.believable else None


def _tokens(told: Mapping[str, Json]) -> tuple[int, int, int] | None:
    prompt = counted(told.get("input_tokens")) or counted(told.get("prompt_tokens")) or 0
    answer = counted(told.get("output_tokens")) or counted(told.get("completion_tokens")) or 0
    prompt = max(prompt, (counted(told.get("total_tokens")) or 0) - answer)
    cached = counted(_details(told).get("cached_tokens")) or 0
    return (prompt, answer, min(cached, prompt)) if prompt or answer else None


def _details(told: Mapping[str, Json]) -> Mapping[str, Json]:
    return _mapping(told.get("input_token_details") or told.get("prompt_tokens_details"))


def _units(
    raw: Mapping[str, Json], told: Mapping[str, Json], billed: Mapping[str, Json], api: Api
) -> Units | None:
    match api:
        case "transcription" | "translation":
            for seconds in (told.get("seconds"), told.get("prompt_audio_seconds"), raw.get("duration")):
                if (amount := _amount(seconds)) is not None:
                    return Units("second", amount)
        case "rerank":
            for searches in (billed.get("search_units"), told.get("search_units")):
                if (amount := _amount(searches)) is not None:
                    return Units("search", amount)
        case "image_generation" | "image_edit":
            pictures = raw.get("data")
            if isinstance(pictures, list) and pictures:
                quality, size = raw.get("quality"), raw.get("size")
                kind = (
                    f"{quality if isinstance(quality, str) else ''} {size if isinstance(size, str) else ''}"
                )
                return Units("image", len(pictures), kind[:80])
    return None


def _amount(value: Json) -> float | None:
    """``whisper``'s servers write durations as texts, too."""
    try:
        amount = (
            float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
        )
    except ValueError:
        return None
    return amount if amount >= 0 and isfinite(amount) else None


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}
