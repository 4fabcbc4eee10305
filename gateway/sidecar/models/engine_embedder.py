"""Sentence embeddings of an engine that serves an embedding model, asked over HTTP in place of a model of our own."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from itertools import combinations

import httpx
import numpy as np
import orjson

from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError
from gateway.sidecar.models.embedder import Floats, SentenceEmbedder

SPACE = "all-MiniLM-L6-v2 of an engine"
"""The embedding space of those that ``check_is_minilm`` lets pass."""
_TIMEOUT = httpx.Timeout(10.0, connect=1.0)
_MOST = 16 * 2**10
"""Characters of a text that are sent; the engine keeps of them what its model takes."""
_BUSY = (429, 503)
_KNOWN = (
    "How do I reset my password?",
    "I forgot my password.",
    "What is the capital of France?",
    "Paris is a city in France.",
    "def add(a, b): return a + b",
    "Wie wird das Wetter morgen?",
)
_COSINES = (
    *(0.725, 0.0731, -0.0039, -0.0178, 0.1166),
    *(0.0668, 0.0023, 0.0384, 0.0825, 0.7046),
    *(0.0628, 0.1416, 0.0038, 0.1326, -0.0107),
)
"""Of each two of ``_KNOWN``, by all-MiniLM-L6-v2."""
_APART = 0.02
"""As much as weights of 8 bits change a cosine; another model changes it by ten times as much."""


class EngineEmbedder(SentenceEmbedder):
    """Blocking, as the other embedders are: it is called in threads."""

    def __init__(self, base_url: str, model: str, transport: httpx.BaseTransport | None = None) -> None:
        self._model = model
        self._client = httpx.Client(base_url=base_url, timeout=_TIMEOUT, trust_env=False, transport=transport)
        self._width: int | None = None

    def encode(self, texts: Sequence[str]) -> list[Floats]:
        """Raises ``SidecarDown`` where there is no engine, ``SidecarBusy`` where it has no time."""
        # An empty text has no embedding there.
        body = {
            "model": self._model,
            "input": [text[:_MOST] or " " for text in texts],
            "encoding_format": "base64",
            "truncate_prompt_tokens": -1,
        }
        try:
            answer = self._client.post(
                "/v1/embeddings", content=orjson.dumps(body), headers={"content-type": "application/json"}
            )
        except httpx.TimeoutException:
            raise SidecarBusy(f"the engine at {self._client.base_url} embeds nothing in time") from None
        except httpx.TransportError as error:
            raise SidecarDown(f"the engine at {self._client.base_url} cannot be reached: {error}") from None
        if answer.status_code in _BUSY:
            raise SidecarBusy(f"the engine at {self._client.base_url} is busy (HTTP {answer.status_code})")
        if answer.status_code != 200:
            raise SidecarError(f"the engine answers with HTTP {answer.status_code}: {answer.text[:200]}")
        return self._vectors(answer.content, len(texts))

    def beginning(self, text: str) -> str:
        return text[:_MOST]

    def check_is_minilm(self) -> None:
        """Raises ValueError if it is another model: the semantic cache's verifier was trained for this one."""
        vectors = [row[0] / max(float(np.linalg.norm(row[0])), 1e-12) for row in self.encode(_KNOWN)]
        found = [float(one @ other) for one, other in combinations(vectors, 2)]
        if max(abs(a - b) for a, b in zip(found, _COSINES, strict=True)) > _APART:
            raise ValueError(
                f"'{self._model}' is not all-MiniLM-L6-v2, for which the semantic cache's verifier was trained: let "
                "the engine serve that, or leave 'sidecar.embedder' out"
            )

    def _vectors(self, data: bytes, count: int) -> list[Floats]:
        try:
            rows = sorted(orjson.loads(data)["data"], key=lambda row: int(row["index"]))
            found = [np.frombuffer(b64decode(row["embedding"]), dtype="<f4")[None] for row in rows]
        except (KeyError, TypeError, ValueError):
            raise SidecarError("the engine's answer holds no embeddings") from None
        widths = {row.shape[1] for row in found}
        if len(found) != count or len(widths) != 1 or 0 in widths:
            raise SidecarError(
                f"the engine answers {count} texts with {len(found)} embeddings of {len(widths)} lengths"
            )
        width = widths.pop()
        self._width = self._width or width
        if width != self._width:
            raise SidecarError(
                f"the engine's vectors have {width} numbers and had {self._width}: it serves another model"
            )
        return found
