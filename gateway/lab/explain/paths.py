"""At which path a body is asked, where nobody says so."""

from __future__ import annotations

import json
from typing import Any


def path_of(body: bytes) -> str:
    """By what only one of the APIs has: Anthropic's system prompt stands beside the messages, and blocks are typed."""
    try:
        asked = json.loads(body)
    except ValueError:
        return "/v1/chat/completions"
    if not isinstance(asked, dict):
        return "/v1/chat/completions"
    if "messages" in asked:
        return "/v1/messages" if "system" in asked or "anthropic_version" in asked else "/v1/chat/completions"
    if "input" in asked:
        responses = {
            "instructions",
            "previous_response_id",
            "max_output_tokens",
            "reasoning",
            "text",
            "tools",
        }
        return "/v1/responses" if responses & asked.keys() or _is_items(asked["input"]) else "/v1/embeddings"
    return "/v1/completions" if "prompt" in asked else "/v1/chat/completions"


def _is_items(given: Any) -> bool:
    return isinstance(given, list) and any(isinstance(one, dict) for one in given)
