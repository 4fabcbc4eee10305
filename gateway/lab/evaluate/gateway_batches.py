"""A gateway's batches, by which cases are asked: they survive the death of whoever waits for them.

What a run has asked is found again by the metadata of its batches: nothing is kept here, and a command that is started
again goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

from gateway.lab.evaluate.errors import EvaluationError

Line = tuple[str, Mapping[str, Any]]
"""A custom id, and the body of a chat completion."""
MOST_LINES = 50_000
_PATH = "/v1/chat/completions"
_ENDED = frozenset(["completed", "failed", "expired", "cancelled"])
_TRIES = 30
"""Of a call that finds no gateway: one that starts again is back within so many seconds."""


class GatewayBatches:
    def __init__(self, http: httpx.AsyncClient, url: str, *, poll: float = 1.0) -> None:
        """``http`` has the gateway's base URL and the key; ``poll`` seconds pass between two looks."""
        self._http = http
        self._url = url
        self._poll = poll
        self._answered = False
        """Whether it ever did. One that never has is not waited for: most likely the address is wrong."""

    async def answers(
        self, run: str, lines: Sequence[Line], told: Callable[[int, int], None]
    ) -> dict[str, dict[str, Any]]:
        """The results by custom id. Batches of ``run`` that exist already are not asked again.

        ``told`` is called with how many lines have ended, and of how many. Raises ``EvaluationError``.
        """
        parts = [lines[at : at + MOST_LINES] for at in range(0, len(lines), MOST_LINES)]
        known = await self._known(run)
        ids = [
            known.get(str(number)) or await self._create(run, number, part)
            for number, part in enumerate(parts)
        ]
        found: dict[str, dict[str, Any]] = {}
        for number, (batch_id, part) in enumerate(zip(ids, parts, strict=True)):
            before = number * MOST_LINES
            batch = await self._ended(batch_id, lambda done, at=before: told(at + done, len(lines)))  # type: ignore[misc]
            for file_id in (batch.get("output_file_id"), batch.get("error_file_id")):
                if file_id is not None:
                    async for line in self._lines(file_id):
                        found[line["custom_id"]] = line
            if absent := [custom_id for custom_id, _ in part if custom_id not in found]:
                raise EvaluationError(
                    f"batch {batch_id} has ended ({batch['status']}) without {len(absent)} of its lines, "
                    f"as '{absent[0]}': name another run by --run to ask anew"
                )
        return found

    async def _known(self, run: str) -> dict[str, str]:
        """The batches of ``run`` that can still end well or have, by their part."""
        found: dict[str, str] = {}
        after: str | None = None
        while True:
            query = {"limit": "100", **({"after": after} if after is not None else {})}
            page = (await self._call("GET", "/v1/batches", params=query)).json()
            for batch in page["data"]:
                metadata = batch.get("metadata") or {}
                useless = batch["status"] in ("failed", "cancelled", "cancelling")
                if metadata.get("tollgate_evaluation") == run and not useless:
                    found.setdefault(metadata["part"], batch["id"])
            if not page.get("has_more") or not page["data"]:
                return found
            after = page["data"][-1]["id"]

    async def _create(self, run: str, part: int, lines: Sequence[Line]) -> str:
        content = b"\n".join(
            orjson.dumps({"custom_id": custom_id, "method": "POST", "url": _PATH, "body": body})
            for custom_id, body in lines
        )
        files = {"file": ("evaluation.jsonl", content), "purpose": (None, "batch")}
        file = (await self._call("POST", "/v1/files", files=files)).json()
        made = await self._call(
            "POST",
            "/v1/batches",
            json={
                "input_file_id": file["id"],
                "endpoint": _PATH,
                "completion_window": "24h",
                "metadata": {"tollgate_evaluation": run, "part": str(part)},
            },
        )
        return str(made.json()["id"])

    async def _ended(self, batch_id: str, told: Callable[[int], None]) -> dict[str, Any]:
        while True:
            batch: dict[str, Any] = (await self._call("GET", f"/v1/batches/{batch_id}")).json()
            counts = batch.get("request_counts") or {}
            told((counts.get("completed") or 0) + (counts.get("failed") or 0))
            if batch["status"] == "failed":
                errors = ((batch.get("errors") or {}).get("data")) or [{}]
                raise EvaluationError(
                    f"batch {batch_id} was refused: line {errors[0].get('line')}: {errors[0].get('message')}"
                )
            if batch["status"] in _ENDED:
                return batch
            await asyncio.sleep(self._poll)

    async def _lines(self, file_id: str) -> AsyncIterator[dict[str, Any]]:
        content = (await self._call("GET", f"/v1/files/{file_id}/content")).content
        for line in content.split(b"\n"):
            if line.strip():
                yield orjson.loads(line)

    async def receipts(
        self, ids: Sequence[str], told: Callable[[int, int], None]
    ) -> dict[str, dict[str, Any]]:
        """Of those requests whose receipts are still kept."""
        slots, found = asyncio.Semaphore(16), dict[str, dict[str, Any]]()

        async def one(request_id: str) -> None:
            async with slots:
                response = await self._call("GET", f"/v1/requests/{request_id}", absent=True)
                if response.status_code == 200:
                    found[request_id] = response.json()
                told(len(found), len(ids))

        async with asyncio.TaskGroup() as group:
            for request_id in filter(None, ids):
                group.create_task(one(request_id))
        return found

    async def embeddings(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text."""
        vectors: list[list[float]] = []
        for at in range(0, len(texts), 64):
            body = {"model": model, "input": list(texts[at : at + 64]), "encoding_format": "float"}
            found = (await self._call("POST", "/v1/embeddings", json=body)).json()
            vectors += [one["embedding"] for one in sorted(found["data"], key=lambda one: one["index"])]
        return vectors

    async def _call(self, method: str, path: str, *, absent: bool = False, **more: Any) -> httpx.Response:
        """Raises ``EvaluationError`` for what is not answered, or with an error; 404 is an answer where ``absent``."""
        for tried in range(1, _TRIES + 1):
            try:
                response = await self._http.request(method, path, **more)
            except httpx.TransportError as error:
                if tried == _TRIES or not self._answered:
                    raise EvaluationError(
                        f"{self._url} does not answer ({error or type(error).__name__}): is the gateway up, and --url "
                        "its address?"
                    ) from None
                await asyncio.sleep(self._poll)
                continue
            self._answered = True
            if response.status_code in (429, 503) and tried < _TRIES:
                await asyncio.sleep(min(30.0, _seconds(response.headers.get("retry-after"), self._poll)))
                continue
            break
        if response.is_success or (absent and response.status_code == 404):
            return response
        raise EvaluationError(f"{method} {path}: {response.status_code}: {_message(response)}")


def _seconds(text: str | None, otherwise: float) -> float:
    try:
        return max(0.0, float(text or ""))
    except ValueError:
        return otherwise


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200] or "no reason given"


@asynccontextmanager
async def open_gateway(url: str, key: str, *, poll: float = 1.0) -> AsyncIterator[GatewayBatches]:
    headers = {"authorization": f"Bearer {key}", "user-agent": "tollgate-evaluate"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120.0, trust_env=False) as http:
        yield GatewayBatches(http, url, poll=poll)
