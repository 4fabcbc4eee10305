"""URLs of images and the like, as guards read them: decoded, and without their signatures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple
from urllib.parse import unquote

from gateway.guards.texts.edits import Edit

_ENCODED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_SIGNATURE = re.compile(
    r"(?<=[?&])(?:x-amz-[a-z-]+|awsaccesskeyid|signature|x-goog-[a-z-]+|googleaccessid|key-pair-id|policy"
    r"|sig|s[eprtv]|spr|sk(?:oid|tid|t|e|s|v))=([^&#]*)",
    re.IGNORECASE,
)
"""Parameters by which S3, GCS, CloudFront and Azure let somebody fetch one object for a while, and nobody without."""


class ReadableUrl(NamedTuple):
    text: str
    spans: list[tuple[int, int]]
    """Where each character of ``text`` is in the URL."""

    def in_url(self, edits: Sequence[Edit]) -> list[Edit]:
        """Edits of ``text`` as those of the URL, which do not overlap either."""
        moved: list[Edit] = []
        done = 0
        for edit in edits:
            start, end = max(self.spans[edit.start][0], done), self.spans[edit.end - 1][1]
            done = max(done, end)
            moved.append(edit._replace(start=start, end=done))
        return moved


def is_data(url: str) -> bool:
    """Whether it holds what it names."""
    return url[:5].lower() == "data:"


def readable_url(url: str) -> ReadableUrl:
    hidden = [match.span(1) for match in _SIGNATURE.finditer(url)]
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    position = 0

    def plain(end: int) -> None:
        parts.append(url[position:end])
        spans.extend((at, at + 1) for at in range(position, end))

    encoded = [match.span() for match in _ENCODED.finditer(url)]
    for start, end in sorted([*hidden, *encoded]):
        if start < position:  # within a signature
            continue
        plain(start)
        if (start, end) not in hidden:
            decoded = unquote(url[start:end])
            parts.append(decoded)
            spans += _spans(decoded, start, end)
        position = end
    plain(len(url))
    return ReadableUrl("".join(parts), spans)


def _spans(decoded: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where each character of an encoded part is; in what is no UTF-8 each is all of it."""
    lengths = [3 * len(character.encode()) for character in decoded]
    if sum(lengths) != end - start:
        return [(start, end)] * len(decoded)
    ends = list(accumulate(lengths, initial=start))
    return list(pairwise(ends))
