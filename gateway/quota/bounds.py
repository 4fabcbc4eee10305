"""The most tokens that a prompt can come to, whatever its model's tokenizer: what a promise of dollars is built on.

A byte-level BPE tokenizer, or SentencePiece with byte fallback, makes no more tokens of a text than it has bytes in
UTF-8, as each token stands for one byte at least. What chat templates, tools and media add is bounded by the figures
below. Where a provider counts more than that, the difference is billed all the same, and owed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from gateway.types import ChatRequest, Json

TEMPLATE = 32
"""Tokens that a template may put around a conversation: its beginning, a default system prompt's frame, the cue."""
MESSAGE = 12
"""The same of one message: role, separators, and the mark of each part."""
TOOLS = 1024
"""Instructions that a provider adds where there are tools: Anthropic's come to 313 to 735
(https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview#pricing)."""
IMAGE = 48_200
"""Eight tiles of gpt-4o-mini, 2,833 + 8 × 5,667 (https://platform.openai.com/docs/guides/images-vision)."""
IMAGES: Mapping[str, int] = {"anthropic": 5_000}
"""Where a kind of backend has a bound of its own: Claude's largest image comes to 4,784."""
AUDIO_CHARACTERS_PER_TOKEN = 32
"""Of base64: ten tokens a second, of which the thinnest MP3 has 1,333 characters."""
FILE = 200_000
"""A file that is only named: no more than the contexts of most models hold."""

_MEDIA = frozenset({"image_url", "input_image", "image"})
_AUDIO = frozenset({"input_audio", "audio"})
_FILES = frozenset({"file", "input_file", "document"})
_SAID = frozenset({"role", "content"})


def most_tokens(request: ChatRequest, kind: str = "") -> int:
    """Tokens of all prompts of ``request`` together, for a backend of this ``kind``."""
    if request.messages is None:
        return _prompts(request.prompt)
    image = IMAGES.get(kind, IMAGE)
    tokens = TEMPLATE
    for message in request.messages:
        content = message.get("content")
        tokens += MESSAGE + (_bytes(content) if isinstance(content, str) else _value(content, image))
        if len(message) > 2 or not message.keys() <= _SAID:
            tokens += sum(_written(value) for name, value in message.items() if name not in _SAID and value)
    for name in ("tools", "functions"):
        if given := request.params.get(name):
            tokens += TOOLS + _written(given)
    if given := request.params.get("response_format"):
        tokens += TOOLS + _written(given)
    if request.native is not None:
        # The canonical form may say less than the caller's own words, which are what a server of his dialect gets.
        own = {name: value for name, value in request.native.body.items() if name != "tools"}
        tools = request.native.body.get("tools") or ()
        tokens = max(tokens, TEMPLATE + TOOLS + _value(own, image) + (_written(tools) if tools else 0))
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


def _value(value: Json, image: int) -> int:
    """Of parts of a content, or of a body: texts by their bytes, media by their kind."""
    if isinstance(value, str):
        return _bytes(value) + 2
    if isinstance(value, Mapping):
        kind = value.get("type")
        if not isinstance(kind, str):
            kind = ""
        if kind in _MEDIA:
            return image
        if kind in _AUDIO:
            return FILE if (size := _data(value)) is None else size // AUDIO_CHARACTERS_PER_TOKEN + MESSAGE
        if kind in _FILES:
            return FILE if (size := _data(value)) is None else size + image
        return sum(_bytes(name) + 4 + _value(one, image) for name, one in value.items())
    if isinstance(value, list | tuple):
        return sum(MESSAGE + _value(one, image) for one in value)
    return 0 if value is None else 24


def _data(part: Mapping[str, Json]) -> int | None:
    """The characters of a part's data or text; None where it only names some."""
    for value in part.values():
        if isinstance(value, Mapping):
            for name in ("data", "file_data", "text", "content"):
                if name in value:
                    given = value[name]
                    return _bytes(given) if isinstance(given, str) else _written(given)
    return None


def _written(value: Json) -> int:
    """Of what a template writes out as JSON: perhaps indented, a token for each break, and in escapes of ASCII."""
    if isinstance(value, str):
        return _bytes(value) + MESSAGE
    written = orjson.dumps(value, default=dict)
    return (2 if written.isascii() else 3) * len(written)
