"""Messages for paths that are not served."""

from __future__ import annotations

_CHAT = "POST /v1/chat/completions (client.chat.completions.create in OpenAI's SDKs)"

INSTEAD: dict[str, tuple[str, str]] = {
    "/v1/assistants": ("OpenAI's Assistants API", f"use {_CHAT}"),
    "/v1/threads": ("OpenAI's Assistants API", f"use {_CHAT}"),
    "/v1/conversations": ("OpenAI's Conversations API", "use POST /v1/responses with 'previous_response_id'"),
    "/v1/edits": ("OpenAI's Edits API", f"use {_CHAT}"),
    "/v1/engines": ("OpenAI's API of engines", "use the paths under /v1 with 'model' in the body"),
    "/v1/complete": ("Anthropic's Text Completions API", "use POST /v1/messages"),
    "/v1/messages/batches": (
        "Anthropic's batch API",
        "send requests to POST /v1/messages, or chat completions to POST /v1/batches",
    ),
    "/v1/uploads": ("OpenAI's Uploads API", "send a file in one piece to POST /v1/files"),
    "/v1/vector_stores": ("OpenAI's API of vector stores", "use POST /v1/embeddings and a store of your own"),
    "/v1/images/variations": ("OpenAI's API of variations", "use POST /v1/images/generations"),
    "/v1/audio/voices": ("OpenAI's API of voices", "ask its provider directly"),
    "/v1/videos": ("OpenAI's Videos API", "ask its provider directly"),
    "/v1/realtime": ("OpenAI's Realtime API", f"use {_CHAT} with 'stream': true"),
    "/v1/fine_tuning": ("OpenAI's API for fine-tuning", "ask its provider directly"),
    "/api": ("Ollama's own API", f"use {_CHAT}; Ollama's clients have an OpenAI mode"),
    "/v1beta/files": ("Gemini's Files API", "send files as inlineData"),
    "/v1beta/cachedContents": (
        "Gemini's API of caches",
        "send the whole prompt: servers cache by themselves",
    ),
    "/v1beta/interactions": ("Gemini's Interactions API", "use POST /v1beta/models/{model}:generateContent"),
    "/openai/deployments": (
        "This operation of Azure's",
        "use /openai/deployments/{model}/chat/completions, …/completions or …/embeddings",
    ),
}
"""By a path's prefix: the API it belongs to, and what to do instead."""


def explanation(path: str, served: list[str]) -> str:
    """Why ``path`` is not found, and what to use instead; ``served`` are the paths that exist."""
    known = [start for start in INSTEAD if path == start or path.startswith(start + "/")]
    if known:
        whose, instead = INSTEAD[max(known, key=len)]
        return f"There is no path '{path}' here: {whose} is not served. Instead, {instead}."
    return f"There is no path '{path}' here. Served are {', '.join(served)}."
