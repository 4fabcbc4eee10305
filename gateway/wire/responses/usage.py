"""Token usage as the Responses API writes it."""

from __future__ import annotations

from gateway.types import Json, Usage


def write_usage(usage: Usage) -> dict[str, Json]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
