"""Token usage as OpenAI's API writes it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.types import Json, Usage
from gateway.wire.token_counts import count, counted


def read_usage(raw: Json) -> Usage | None:
    """An upstream's usage; a detail that is no token count is taken for 0.

    None where there is none, or none that can be believed: the gateway then counts by itself.
    """
    if not isinstance(raw, dict) or not raw:
        return None
    prompt, completion = counted(raw.get("prompt_tokens")), counted(raw.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    read, details = raw.get("prompt_tokens_details"), raw.get("completion_tokens_details")
    reasoning = count(details, "reasoning_tokens") if details else 0
    if (beyond := (counted(raw.get("total_tokens")) or 0) - prompt - completion) > 0:
        # xAI and Gemini leave reasoning, which they bill, out of the completion; others report only the total.
        if prompt or completion:
            completion, reasoning = completion + beyond, max(reasoning, beyond)
        else:
            prompt = beyond
    usage = Usage(
        more=_beside(raw),
        prompt=prompt,
        completion=completion,
        cached=_cached(raw, read),
        cache_write=count(read, "cache_write_tokens") if read else 0,
        reasoning=reasoning,
    )
    return usage.possible


def _cached(raw: Mapping[str, Json], details: Json) -> int:
    """DeepSeek and others (Together, Moonshot) tell it beside the details."""
    if details:
        return count(details, "cached_tokens")
    return next((count(raw, name) for name in _CACHED if name in raw), 0)


_CACHED = ("prompt_cache_hit_tokens", "cached_tokens")
_COUNTED = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})
_DETAILS: Mapping[str, frozenset[str]] = {
    "prompt_tokens_details": frozenset({"cached_tokens", "cache_write_tokens"}),
    "completion_tokens_details": frozenset({"reasoning_tokens"}),
}


def _beside(raw: Mapping[str, Json]) -> dict[str, Json] | None:
    """What a server reports that is not read here, for its caller as it is; of the details, too."""
    if raw.keys() <= _COUNTED:
        return None
    more: dict[str, Json] = {}
    for name, value in raw.items():
        if (known := _DETAILS.get(name)) is not None:
            value = (
                {key: one for key, one in value.items() if key not in known} if isinstance(value, dict) else 0
            )
            if not value:
                continue
        elif name in _COUNTED:
            continue
        more[name] = value
    return more or None


def write_usage(usage: Usage) -> dict[str, Json]:
    written = _counted(usage)
    for name, value in (usage.more or {}).items():
        written[name] = {**value, **written[name]} if name in _DETAILS else value
    return written


def _counted(usage: Usage) -> dict[str, Json]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            # OpenRouter's name for it; OpenAI's own API has no such thing.
            **({"cache_write_tokens": usage.cache_write} if usage.cache_write else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
