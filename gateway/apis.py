"""APIs that do not chat, such as speech, pictures and ranks of documents: their names, and what they count."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

Api = Literal[
    "speech",
    "transcription",
    "translation",
    "image_generation",
    "image_edit",
    "rerank",
    "score",
    "tokenize",
    "detokenize",
    "count_tokens",
]
"""An API whose answers are passed on as they come; ``count_tokens`` is answered here where no provider counts."""
Unit = Literal["second", "character", "image", "search"]
"""What such APIs are billed by, where not by tokens: sound heard, text spoken, pictures drawn, searches ranked."""


class Units(NamedTuple):
    """So much of one unit."""

    unit: Unit
    amount: float
    kind: str = ""
    """Of pictures: quality and size, as far as they are known, such as ``high 1024x1024``."""


class Form(Protocol):
    """An upload (multipart/form-data), kept so that it can be sent more than once."""

    @property
    def content_type(self) -> str:
        """With its boundary."""
        ...

    @property
    def unread(self) -> tuple[str, ...]:
        """What is in it beside text: ``audio``, ``image``."""
        ...

    @property
    def seconds(self) -> float:
        """How long its sound plays, as far as the file tells; else the longest that so many bytes usually do."""
        ...

    @property
    def unmeasured(self) -> str | None:
        """The name of a file of sound of which nobody can tell how long it plays."""
        ...

    def size(self, texts: Mapping[str, Sequence[str]]) -> int:
        """Bytes of the form with ``texts`` as the values of the fields of these names."""
        ...

    def parts(self, texts: Mapping[str, Sequence[str]]) -> AsyncIterator[bytes]:
        """The form: its parts in the order in which they came, with ``texts`` as the values of these fields."""
        ...
