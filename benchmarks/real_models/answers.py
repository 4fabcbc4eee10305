"""Answers of one model, each asked for once: what is known is read from a file, and what is new is added to it.

A run that was interrupted goes on where it ended. An answer belongs to what was asked, to the letter: a row that is
changed is asked again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from benchmarks.served import served
from gateway.cascade.confidence import assess
from gateway.policy.schema import Escalate
from gateway.types import ChatRequest, Chunk

AT_ONCE = 16
OPTIONS = (
    *("--max-model-len", "4096", "--max-num-seqs", str(AT_ONCE), "--kv-cache-memory", "384MiB"),
    # A machine with much other work may take minutes for a step.
    *("--step-timeout", "3600"),
)
WAITS = (5, 15, 30, 60, 120)
"""Seconds between tries while the engine is out of service."""
_EDGE = re.compile(r"----- [0-9a-f]{12} -----")
"""By which a judge is shown where a text begins and ends: another one each time."""

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    finish_reason: str
    prompt_tokens: int
    tokens: int
    mean_logprob: float
    """As a receipt has it."""
    least_logprob: float


class Answers:
    """``ask`` needs an engine, within ``serving``; ``known`` does not."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model = model
        self._path = folder / f"{model.stem}.jsonl"
        self._known: dict[str, Answer] = {}
        self._client: httpx.AsyncClient | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)
        if self._path.exists():
            with self._path.open(encoding="utf-8") as lines:
                for row in map(_row, lines):
                    if row is not None:
                        key = row.pop("key")
                        self._known[key] = Answer(**row)

    @property
    def name(self) -> str:
        return self._model.stem

    def known(self, messages: Messages, max_tokens: int) -> Answer | None:
        return self._known.get(_key(messages, max_tokens))

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The engine's address."""
        with served(self._model, OPTIONS) as url:
            self.connect(url)
            yield url
            self._client = None

    def connect(self, url: str) -> None:
        """To an engine that serves the model."""
        self._client = httpx.AsyncClient(base_url=url, timeout=None)

    async def ask(self, messages: Messages, max_tokens: int) -> Answer:
        """Greedily. Raises ``RuntimeError`` where the engine refuses."""
        key = _key(messages, max_tokens)
        if key not in self._known:
            async with self._slots:
                self._known[key] = await self._asked(messages, max_tokens)
            row = json.dumps({"key": key, **asdict(self._known[key])}, ensure_ascii=False)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"\n{row}\n")  # what was cut off in the middle of a line stays one of its own
        return self._known[key]

    async def _asked(self, messages: Messages, max_tokens: int) -> Answer:
        if self._client is None:
            raise RuntimeError(f"{self._path.name} lacks answers: run this without --offline to ask for them")
        body = {
            "model": self._model.stem,
            "messages": messages,
            "temperature": 0,
            "max_tokens": max_tokens,
            "logprobs": True,
        }
        for wait in (*WAITS, None):
            response = await self._client.post("/v1/chat/completions", json=body)
            # An engine that lost its process, to a machine without memory left, say, starts another.
            if response.status_code != 503 or wait is None:
                break
            await asyncio.sleep(wait)
        if response.is_error:
            raise RuntimeError(f"{response.status_code}: {response.text[:500]}")
        return read(response.json())


def read(response: Mapping[str, Any]) -> Answer:
    """An answer in OpenAI's format; its confidence is taken by the gateway's own code."""
    (choice,), usage = response["choices"], response["usage"]
    text = choice["message"]["content"] or ""
    chunk = Chunk(delta={"content": text}, logprobs=choice["logprobs"], finish_reason=choice["finish_reason"])
    mean = assess([chunk], ChatRequest(model="", messages=()), Escalate()).mean_logprob
    each = [token["logprob"] for token in choice["logprobs"]["content"]]
    return Answer(
        text,
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
        round(mean or 0.0, 5),
        round(min(each, default=0.0), 5),
    )


def _row(line: str) -> dict[str, Any] | None:
    """None for an empty line, and for one that was cut off."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def _key(messages: Messages, max_tokens: int) -> str:
    asked = json.dumps([list(map(dict, messages)), max_tokens], ensure_ascii=False, sort_keys=True)
    return sha256(_EDGE.sub("-----", asked).encode()).hexdigest()[:20]
