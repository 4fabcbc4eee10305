"""Parts of a conversation that are no text: pictures, sound, films and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

MediaKind = Literal["image", "audio", "video", "file"]
MEDIA: frozenset[MediaKind] = frozenset(get_args(MediaKind))
ARTICLES: Mapping[MediaKind, str] = {
    "image": "an image",
    "audio": "audio",
    "video": "a video",
    "file": "a file",
}

KINDS: Mapping[str, MediaKind] = {
    # OpenAI's chat completions and responses, vLLM's and Mistral's additions, Anthropic's blocks
    **dict.fromkeys(("image_url", "input_image", "image"), "image"),
    **dict.fromkeys(("input_audio", "audio_url", "audio"), "audio"),
    **dict.fromkeys(("video_url", "video"), "video"),
    **dict.fromkeys(("file", "input_file", "document", "document_url", "container_upload"), "file"),
}
"""By the ``type`` of a part."""


def kind_of(part: Any) -> MediaKind | None:
    """None for text, and for what is no part of a content."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return KINDS.get(kind) if isinstance(kind, str) else None


def media_in(messages: Iterable[Mapping[str, Any]]) -> dict[MediaKind, str]:
    """The kinds of media in a conversation of OpenAI's shape, and the path of the first of each:
    ``messages[0].content[1]``."""
    found: dict[MediaKind, str] = {}
    for i, message in enumerate(messages):
        content = message.get("content")
        if type(content) is not list:  # nearly all of them
            continue
        for j, part in enumerate(content):
            if (kind := kind_of(part)) is not None and kind not in found:
                found[kind] = f"messages[{i}].content[{j}]"
    return found
