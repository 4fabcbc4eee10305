"""Long texts cut into overlapping chunks, so that one bad sentence neither drowns nor is cut in two."""

from __future__ import annotations

from collections.abc import Iterator


def chunks(text: str, size: int, overlap: int, *, slack: int = 0) -> Iterator[str]:
    """Chunks of ``size`` characters that overlap by ``overlap``.

    A text of up to ``size + slack`` characters is one chunk; an empty one, too.
    """
    if len(text) <= size + slack:
        yield text
        return
    for start in range(0, len(text) - overlap, size - overlap):
        yield text[start : start + size]
