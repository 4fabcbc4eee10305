"""What the sidecar does for the gateway's workers. ``client.py`` is the implementation; tests may have others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from gateway.findings import Finding

TENANT: ContextVar[str] = ContextVar("tenant", default="")
"""The tenant for whom the sidecar is asked: set where it is known, for all that a request does, and passed on by the
client. The sidecar gives each its turn."""


class SidecarError(Exception):
    """The sidecar did not do what it was asked. The message says why, for logs."""


class SidecarDown(SidecarError):
    """It cannot be reached, or went away in the middle; it is restarted by whoever started it."""


class SidecarLoading(SidecarError):
    """It is there, and the model is still being loaded, or could not be."""


class SidecarBusy(SidecarError):
    """Its queue is full."""


class Scored(NamedTuple):
    """A head's scores for a part of a text: long texts are judged in overlapping windows."""

    start: int
    end: int
    scores: Mapping[str, float]
    """Probability by label."""


class Hit(NamedTuple):
    """An answer that was given to a question like this one."""

    payload: bytes
    similarity: float
    """Cosine."""
    confidence: float
    """The verifier's: that one answer serves both."""
    age: float
    """Seconds."""


class LookupResult(NamedTuple):
    """What a look into the semantic cache gave."""

    hit: Hit | None
    reason: str
    """``hit``; or why there is none: ``empty``, ``unlike``, or what the verifier refused, such as ``number``."""
    similarity: float | None = None
    """Of the nearest question, whether or not it served."""


class Sidecar(Protocol):
    """All raise ``SidecarError`` and nothing else; all may be cancelled. Callers bound the time they wait."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """For each text, its sentence embedding: little-endian float32, of length 1. Longer than the model's input
        is truncated."""
        ...

    async def score(self, head: str, texts: Sequence[str]) -> list[list[Scored]]:
        """What a head (``toxicity``, ``injection``, ``complexity``) makes of each text, window by window."""
        ...

    async def classify(self, model: str, texts: Sequence[str]) -> list[list[Scored]]:
        """The same by a transformers text classification model."""
        ...

    async def entities(
        self, texts: Sequence[str], *, language: str, entities: Sequence[str]
    ) -> list[list[Finding]]:
        """Presidio's findings in each text, as they are: overlaps and scores are the caller's to judge."""
        ...

    async def look_up(self, partition: str, question: str, *, budget: float, floor: float) -> LookupResult:
        """The best entry of ``partition`` that answers ``question`` within the error budget."""
        ...

    async def remember(self, partition: str, question: str, payload: bytes, *, key: str, ttl: float) -> None:
        """Add an entry. ``key`` names it for ``forget``."""
        ...

    async def forget(self, partition: str, key: str) -> None: ...

    async def status(self) -> Mapping[str, Any]:
        """``{"models": {name: "ready" | "loading" | "failed: why"}, "queue": n, "entries": n …}``"""
        ...
