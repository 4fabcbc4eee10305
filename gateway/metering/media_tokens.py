"""How many tokens sound, films and files take, by the rule that their model's provider documents; pictures have a file
of their own (``image_tokens``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from mimetypes import guess_type

from gateway.media import MediaKind, kind_of
from gateway.metering import audio_seconds, image_tokens
from gateway.metering.encoded_file import EncodedFile
from gateway.metering.pdf_objects import Unpacking
from gateway.metering.pdf_pages import PageCount, pages_of
from gateway.types import Json

FILE = 200_000
"""The most tokens of a file that cannot be looked into: about the largest context of most models."""
MILLION = 1_048_576
"""The same of models with a context of a million, which a film of an hour fills."""
USUAL_PAGES = 10
"""Of a file that cannot be looked into."""
CHARACTERS_PER_TOKEN = 4.0
PACKED_BYTES_PER_TOKEN = 5.0
"""Of office documents, which are packed XML."""
FILM_BYTES_PER_TOKEN = 100.0
"""258 tokens a second of pictures and 32 of sound (https://ai.google.dev/gemini-api/docs/tokens), at 30 kB/s."""
THINNEST_FILM_BYTES = 3.5
"""At 1 kB/s, less than which no film of pictures that move has: 290 tokens a second."""
MARGIN = 1.25
_MOST_READ = 32
"""Files of a request that are looked into."""
_TEXTS = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
_PACKED = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How office documents begin."""
_MOST_TEXT = 65_536
"""Bytes that show whether a text is of one byte a character."""


@dataclass(frozen=True, slots=True)
class MediaRule:
    """Of one family of models."""

    second: float = 32.0
    """Tokens of a second of sound."""
    page: int = 4_600
    """Of a page of a PDF, usually at most."""
    most_page: int = 8_000
    file: int = FILE
    """Of one that would have to be fetched, at most: a film's address tells nothing of its length."""


_CLAUDE = MediaRule(page=4_600, most_page=8_000)
"""1,500 to 3,000 tokens of text, and the page as a picture
(https://platform.claude.com/docs/en/build-with-claude/pdf-support#estimate-your-costs)."""
_UNKNOWN = MediaRule()
_RULES: tuple[tuple[str, MediaRule], ...] = (
    (r"claude", _CLAUDE),
    # https://ai.google.dev/gemini-api/docs/tokens, and since 3 /media-resolution: high is twice the usual
    (r"gemini-([3-9]|[1-9]\d)", MediaRule(32, 560, 1_120, MILLION)),
    (r"gemini", MediaRule(32, 258, 258, MILLION)),
    # https://developers.openai.com/api/docs/guides/realtime-costs: a token for 100 ms. Of a page text and picture.
    (r"gpt-4o-mini", MediaRule(10, 28_501, 48_200)),
    (r"gpt-4\.1", MediaRule(10, 4_000, 5_000, MILLION)),
    (r"gpt|chatgpt|o[134]", MediaRule(10, 4_000, 5_000)),
    # 12.5 frames a second (https://arxiv.org/abs/2507.13264)
    (r"voxtral", MediaRule(12.5)),
)
_NAMES = tuple((re.compile(rf"(?:^|[/.:]){name}(?![a-z0-9])"), rule) for name, rule in _RULES)


@cache
def rule_of(model: str) -> MediaRule:
    """By the name that the provider knows, resellers' prefixes included."""
    return next((rule for name, rule in _NAMES if name.search(model)), _UNKNOWN)


@dataclass(frozen=True, slots=True)
class MediaBounds:
    """The most tokens that media take, of one model or of several."""

    image: int = image_tokens.MOST
    second: float = _UNKNOWN.second * MARGIN
    page: int = _UNKNOWN.most_page
    file: int = MILLION

    @classmethod
    def of(cls, kind: str, model: str) -> MediaBounds:
        """Of a ``model`` of a backend of this ``kind``."""
        rule = rule_of(model)
        return cls(image_tokens.most_of(kind, model), rule.second * MARGIN, rule.most_page, rule.file)

    def or_more(self, other: MediaBounds) -> MediaBounds:
        """A bound on both."""
        return MediaBounds(
            *(max(self.image, other.image), max(self.second, other.second)),
            *(max(self.page, other.page), max(self.file, other.file)),
        )


ANY_MODEL = MediaBounds()


@dataclass(frozen=True, slots=True)
class _Medium:
    kind: MediaKind
    file: EncodedFile | None
    """None where it would have to be fetched."""
    type: str
    """Its media type, or the format of a sound; empty where neither is said."""


class MediaReader:
    """Counts the media of one request, of whose files the first few are looked into."""

    def __init__(self) -> None:
        self._left = _MOST_READ
        self._unpacking = Unpacking()

    def usual(self, part: Mapping[str, Json], model: str) -> float:
        """About how many tokens a part takes that is a medium."""
        if part.get("type") in image_tokens.KINDS:
            return image_tokens.tokens_of(part, model)
        medium, rule = _medium(part), rule_of(model)
        if medium.kind == "audio":
            return self._seconds(medium) * rule.second
        if medium.file is None:
            return USUAL_PAGES * rule.page
        if medium.kind == "video":
            return min(FILE, medium.file.size / FILM_BYTES_PER_TOKEN)
        if _is_text(medium):
            return self._text(medium.file)
        if (pages := self._pages(medium.file)) is not None:
            return pages.number * rule.page
        return min(FILE, max(rule.page, medium.file.size / PACKED_BYTES_PER_TOKEN))

    def most(self, part: Mapping[str, Json], bounds: MediaBounds) -> int:
        """How many it takes at most."""
        if part.get("type") in image_tokens.KINDS:
            return bounds.image
        medium = _medium(part)
        if medium.file is None:
            return bounds.file
        if medium.kind == "audio":
            return self._most_of_sound(medium, medium.file, bounds)
        if medium.kind == "video":
            return min(bounds.file, int(medium.file.size / THINNEST_FILM_BYTES) + 12)
        if _is_text(medium):
            return medium.file.size + 12
        if (pages := self._pages(medium.file)) is not None:
            most = pages.number * bounds.page
            return most if pages.certain else max(FILE, most)
        return max(FILE, medium.file.size)

    def _most_of_sound(self, medium: _Medium, file: EncodedFile, bounds: MediaBounds) -> int:
        # That it is bare samples only the request says, and servers go by what they find.
        if (known := self._known_seconds(replace(medium, type=""))) is not None:
            return int(known * bounds.second) + 12
        return min(bounds.file, int(file.size / audio_seconds.THINNEST_UNKNOWN * bounds.second) + 12)

    def _seconds(self, medium: _Medium) -> float:
        if medium.file is None:
            return 60.0
        known = self._known_seconds(medium)
        return medium.file.size / audio_seconds.USUAL if known is None else known

    def _known_seconds(self, medium: _Medium) -> float | None:
        if medium.file is None or not self._may_read():
            return None
        return audio_seconds.seconds_of(medium.file, medium.type)

    def _pages(self, file: EncodedFile) -> PageCount | None:
        return pages_of(file, self._unpacking) if self._may_read() else None

    def _text(self, file: EncodedFile) -> float:
        if not self._may_read():
            return file.size / 2
        shown = file.read(0, _MOST_TEXT)
        wide = 0 if shown.isascii() else sum(byte > 0x7F for byte in shown) / len(shown)
        return file.size * ((1 - wide) / CHARACTERS_PER_TOKEN + wide / 2)

    def _may_read(self) -> bool:
        self._left -= 1
        return self._left >= 0


def _medium(part: Mapping[str, Json]) -> _Medium:
    """What a part holds, in any dialect: beside its own name, as ``source``, or packed in as Anthropic's ``block``."""
    kind = kind_of(part) or "file"
    given = part.get("block") or part
    if isinstance(given, Mapping) and isinstance(source := given.get("source"), Mapping):
        data, kind_of_data = source.get("data"), source.get("media_type")
        file = EncodedFile(data) if source.get("type") == "base64" and isinstance(data, str) else None
        return _Medium(kind, file, kind_of_data if isinstance(kind_of_data, str) else "")
    held = part.get("file" if kind == "file" else str(part.get("type")))
    fields = held if isinstance(held, Mapping) else {"url": held} if isinstance(held, str) else part
    data = next(
        (fields[key] for key in ("file_data", "data", "url") if isinstance(fields.get(key), str)), None
    )
    file = None if data is None else EncodedFile.of_url(data)
    return _Medium(kind, file, _type(fields, data or ""))


def _type(fields: Mapping[str, Json], data: str) -> str:
    """As the request says it, or a file's name."""
    head = data[:256]
    if head.startswith("data:"):
        return head[len("data:") :].partition(",")[0].partition(";")[0]
    if isinstance(form := fields.get("format"), str):
        return form
    name = fields.get("filename")
    return (guess_type(name)[0] or "") if isinstance(name, str) else ""


def _is_text(medium: _Medium) -> bool:
    """By what the request says, and by the file itself, which providers go by."""
    if medium.file is None or not (medium.type.startswith("text/") or medium.type in _TEXTS):
        return False
    head = medium.file.read(0, 1024)
    return b"%PDF-" not in head and not head.startswith(_PACKED)
