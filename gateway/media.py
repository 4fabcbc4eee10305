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


GOOGLES_MEDIA = ("inlineData", "fileData")
"""Fields of Google's parts that hold a medium."""
_SOUND = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}


def from_google(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """The medium of a part of Google's (``inlineData``, ``fileData``) as a part of OpenAI's; None where it has none."""
    match part:
        case {"inlineData": {"data": str(data), **blob}}:
            kind = blob.get("mimeType")
            kind = kind if isinstance(kind, str) and kind else "application/octet-stream"
            if "-" in data or "_" in data:  # the other alphabet, which Google's SDK for Python sends
                data = data.translate(_ALPHABET)
            data += "=" * (-len(data) % 4)
            whole = f"data:{kind};base64,{data}"
            family, _, name = kind.partition("/")
            if family == "image":
                return {"type": "image_url", "image_url": {"url": whole}}
            if family == "audio":
                return {
                    "type": "input_audio",
                    "input_audio": {"data": data, "format": _SOUND.get(name, name)},
                }
            if family == "video":
                return {"type": "video_url", "video_url": {"url": whole}}
            shown = blob.get("displayName")
            filename = shown if isinstance(shown, str) and shown else f"file.{name or 'bin'}"
            return {"type": "file", "file": {"file_data": whole, "filename": filename}}
        case {"fileData": {"fileUri": str(url), **file}}:
            family = str(file.get("mimeType") or "").partition("/")[0]
            if family == "image":
                return {"type": "image_url", "image_url": {"url": url}}
            if family == "video":
                return {"type": "video_url", "video_url": {"url": url}}
            return {"type": "file", "file": {"file_id": url}}
    return None


_ALPHABET = str.maketrans("-_", "+/")
