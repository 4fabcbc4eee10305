"""Token usage as OpenAI's API writes it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.types import MOST_TOKENS, Json, Usage
from gateway.wire.token_counts import count, counted


def read_usage(raw: Json) -> Usage | None:
    """An upstream's usage; a detail that is no token count is taken for 0.

    None where there is none, or none that can be believed: the gateway then counts by itself.
    """
    if not isinstance(raw, dict) or not raw:
        return None
    prompt, completion = raw.get("prompt_tokens"), raw.get("completion_tokens")
    if type(prompt) is not int or prompt < 0:
        prompt = counted(prompt)
    if type(completion) is not int or completion < 0:
        completion = counted(completion)
    if prompt is None or completion is None:
        return None
    more = None
    cached = written = reasoning = 0
    if not raw.keys() <= _COUNTED:
        more, read = _beside(raw), raw.get("prompt_tokens_details")
        cached = _cached(raw, read)
        written = count(read, "cache_write_tokens")
        reasoning = count(raw.get("completion_tokens_details"), "reasoning_tokens")
    whole = raw.get("total_tokens")
    if whole != prompt + completion and (beyond := (counted(whole) or 0) - prompt - completion) > 0:
        # xAI and Gemini leave reasoning, which they bill, out of the completion; others report only the total.
        if prompt or completion:
            completion, reasoning = completion + beyond, max(reasoning, beyond)
        else:
            prompt = beyond
    usage = Usage(prompt, completion, cached, reasoning, written, more=more)
    if prompt + completion <= MOST_TOKENS and cached + written <= prompt and reasoning <= completion:
        return usage
    return usage.possible


def _cached(raw: Mapping[str, Json], details: Json) -> int:
    """DeepSeek and others (Together, Moonshot) tell it beside the details."""
    if details:
        return count(details, "cached_tokens")
    for name in ("prompt_cache_hit_tokens", "cached_tokens"):
        if name in raw:
            return count(raw, name)
    return 0


_COUNTED = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})
_DETAILS: Mapping[str, frozenset[str]] = {
    "prompt_tokens_details": frozenset({"cached_tokens", "cache_write_tokens"}),
    "completion_tokens_details": frozenset({"reasoning_tokens"}),
}


def _beside(raw: Mapping[str, Json]) -> dict[str, Json] | None:
    """What a server reports that is not read here, for its caller as it is; of the details, too."""
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
    read: dict[str, Json] = {"cached_tokens": usage.cached}
    if usage.cache_write:
        read["cache_write_tokens"] = (
            usage.cache_write
        )  # OpenRouter's name for it; OpenAI's own API has no such thing
    written: dict[str, Json] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": read,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
    if usage.more:
        for name, value in usage.more.items():
            written[name] = {**value, **written[name]} if name in _DETAILS else value
    return written
