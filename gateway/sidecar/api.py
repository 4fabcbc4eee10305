"""The sidecar's operations, as gateway workers call them. ``client.py`` implements them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from gateway.findings import Finding

PROJECTED = 8
"""Random projections of an embedding (``semantic.projection``)."""
PROJECTION_STEP = 1 / 64
"""In which they are told. Over unlike texts their standard deviation is about 1/√384, 3.3 steps."""
TENANT: ContextVar[str] = ContextVar("tenant", default="")
"""The tenant of the current request; the client passes it on, and the sidecar serves tenants in turn."""


class SidecarError(Exception):
    """An operation failed. The message says why, for logs."""


class SidecarDown(SidecarError):
    """It cannot be reached, or its connection broke; the supervisor restarts it."""


class SidecarLoading(SidecarError):
    """The model is still loading, or could not be loaded."""


class SidecarBusy(SidecarError):
    """Its queue is full."""


class Scored(NamedTuple):
    """A head's scores for a part of a text: long texts are scored in overlapping windows."""

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
    """The verifier's: the probability that one answer serves both."""
    age: float
    """Seconds."""


class LookupResult(NamedTuple):
    """What a look-up in the semantic cache found."""

    hit: Hit | None
    reason: str
    """``hit``; or why there is none: ``empty``, ``unlike``, or what the verifier refused, such as ``number``."""
    similarity: float | None = None
    """Of the nearest question, hit or not."""
    projection: tuple[int, ...] = ()
    """Of the question's embedding, in steps, where that was asked for."""


class Sidecar(Protocol):
    """All raise ``SidecarError`` and nothing else; all may be cancelled. Callers set timeouts."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """For each text, its sentence embedding: little-endian float32, of length 1. Longer than the model's input
        is truncated."""
        ...

    async def score(self, head: str, texts: Sequence[str]) -> list[list[Scored]]:
        """A head's (``toxicity``, ``injection``, ``complexity``) scores of each text, window by window."""
        ...

    async def classify(self, model: str, texts: Sequence[str]) -> list[list[Scored]]:
        """The same by a transformers text classification model."""
        ...

    async def entities(
        self, texts: Sequence[str], *, language: str, entities: Sequence[str]
    ) -> list[list[Finding]]:
        """Presidio's findings in each text, unfiltered: overlapping ones and low scores included."""
        ...

    async def look_up(
        self, partition: str, question: str, *, budget: float, floor: float, projects: bool = False
    ) -> LookupResult:
        """The best entry of ``partition`` that answers ``question`` within the error budget."""
        ...

    async def remember(self, partition: str, question: str, payload: bytes, *, key: str, ttl: float) -> None:
        """Add an entry. ``key`` names it for ``forget``."""
        ...

    async def forget(self, partition: str, key: str) -> None: ...

    async def status(self) -> Mapping[str, Any]:
        """``{"models": {name: "ready" | "loading" | "failed: why"}, "queue": n, "entries": n …}``"""
        ...
