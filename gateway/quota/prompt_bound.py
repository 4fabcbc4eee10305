"""The most tokens that a prompt can have, whatever its model's tokenizer: dollar budgets are enforced with it.

A byte-level BPE tokenizer, or SentencePiece with byte fallback, makes at most as many tokens of a text as it has bytes
in UTF-8, as each token stands for at least one byte. What chat templates, tools and media add is bounded by the figures
below. Where a provider counts more, the difference is still charged, and becomes a debt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from gateway.media import GOOGLES_MEDIA, from_google, kind_of
from gateway.metering.media_tokens import ANY_MODEL, MediaBounds, MediaReader
from gateway.types import ChatRequest, Json

TEMPLATE = 32
"""Tokens that a template may add around a conversation: its start, the frame of a default system prompt, the cue."""
MESSAGE = 12
"""The same for one message: role, separators, and the marker of each part."""
TOOLS = 1024
"""Instructions that a provider adds with tools: Anthropic's have 313 to 735
(https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview#pricing)."""
_TEXT_FIELDS = frozenset({"role", "content"})
_PAYLOAD = frozenset({"data", "file_data", "image_url", "url"})
"""Fields of a medium that hold the medium itself."""
_SETTINGS = frozenset(
    {
        *(
            "stop",
            "user",
            "metadata",
            "logit_bias",
            "tool_choice",
            "stream_options",
            "thinking",
            "modalities",
        ),
        *(
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "reasoning_effort",
        ),
        *("verbosity", "encoding_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("structured_outputs", "bad_words", "stop_token_ids", "allowed_token_ids"),
    }
)
"""Parameters that no model sees. All others may become part of the prompt, as ``suffix`` and ``documents`` do."""
_INSTRUCTED = frozenset({"tools", "functions", "response_format"})
_FIGURES = (int, float)


def most_tokens(request: ChatRequest, media: MediaBounds = ANY_MODEL) -> int:
    """Tokens of all prompts of ``request`` together, whose media take at most ``media``."""
    if request.messages is None:
        return _prompts(request.prompt) + request.prompt_count * _parameters(request.params)
    tokens = TEMPLATE + _parameters(request.params)
    parts = _Parts(media)
    for message in request.messages:
        content = message.get("content")
        tokens += MESSAGE + (_bytes(content) if isinstance(content, str) else parts.tokens(content))
        if len(message) > 2 or not message.keys() <= _TEXT_FIELDS:
            tokens += sum(
                _written(value) for name, value in message.items() if name not in _TEXT_FIELDS and value
            )
    if request.native is not None:
        # The canonical form may have less than the caller's own body, which is what a server of that dialect gets.
        own = {name: value for name, value in request.native.body.items() if name != "tools"}
        tools = request.native.body.get("tools") or ()
        native = _Parts(media).tokens(own)
        tokens = max(tokens, TEMPLATE + TOOLS + native + (_written(tools) if tools else 0))
    return tokens


def _parameters(params: Mapping[str, Json]) -> int:
    tokens = 0
    for name, given in params.items():
        if not given or name in _SETTINGS or isinstance(given, _FIGURES):
            continue
        tokens += _written(given) + (TOOLS if name in _INSTRUCTED else 0)
    return tokens


def _prompts(prompt: Json) -> int:
    if isinstance(prompt, str):
        return _bytes(prompt) + 2
    if not isinstance(prompt, Sequence) or not prompt:
        return 2
    if isinstance(prompt[0], int):
        return len(prompt) + 2
    return sum(len(one) if not isinstance(one, str) else _bytes(one) for one in prompt) + 2 * len(prompt)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class _Parts:
    """Parts of the contents of one request, or of its body: texts count by their bytes, media by their kind."""

    def __init__(self, bounds: MediaBounds) -> None:
        self._bounds, self._reader = bounds, MediaReader()

    def tokens(self, value: Json) -> int:
        if isinstance(value, str):
            return _bytes(value) + 2
        if isinstance(value, Mapping):
            if (medium := from_google(value)) is not None:
                # What stands beside the medium is sent as well.
                beside = {name: one for name, one in value.items() if name not in GOOGLES_MEDIA}
                return self.tokens(medium) + (self.tokens(beside) if beside else 0)
            if kind_of(value) is not None and not _is_plain(value.get("source")):
                return self._reader.most(value, self._bounds) + self._beside(value)
            return sum(_bytes(name) + 4 + self.tokens(one) for name, one in value.items())
        if isinstance(value, list | tuple):
            return sum(MESSAGE + self.tokens(one) for one in value)
        return 0 if value is None else 24

    def _beside(self, part: Mapping[str, Json]) -> int:
        """Text beside the medium itself, such as a document's title and context."""
        return sum(
            self._beside(value) if isinstance(value, Mapping) else self.tokens(value)
            for name, value in part.items()
            if name not in _PAYLOAD or not isinstance(value, str)
        )


def _is_plain(source: Json) -> bool:
    """Whether a document is given as text, or as parts of a content, and not packed."""
    return isinstance(source, Mapping) and source.get("type") in ("text", "content")


def _written(value: Json) -> int:
    """Of what a template writes as JSON: perhaps indented, with a token for each break, and with ASCII escapes."""
    if isinstance(value, str):
        return _bytes(value) + MESSAGE
    written = orjson.dumps(value, default=dict)
    return (2 if written.isascii() else 3) * len(written)
