"""A judge model, called through the gateway's own backends."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from hashlib import blake2b
from itertools import count
from typing import Generic, TypeVar

from gateway.errors import GatewayError
from gateway.findings import Finding, Remedy
from gateway.guards.scanners.harms import HARMS
from gateway.guards.scanners.judge_formats import FORMATS
from gateway.guards.scanners.locality import stays
from gateway.guards.scanners.scanner import Origin, Unscanned, Verdict
from gateway.policy.schema import Policy
from gateway.policy.schema.judges import Judge
from gateway.residency import residency_of
from gateway.types import HOUSE, Call, ChatRequest, Handler, Principal, Receipt

T = TypeVar("T")

CONCURRENCY = 8
"""Texts that one judge scores concurrently."""
MAX_ENTRIES = 10_000
"""Verdicts that one judge remembers."""
_SEVERITY = {"block": 3, None: 2, "flag": 1, "ignore": 0}
"""Of several categories the one with the strictest action names the finding; None is the guard's own action."""


class ModelJudge:
    """A ``Judge`` of layered scanners. ``handler`` begins behind guards and caches, and bills ``call.payer``.

    A text may go wherever its request may. With ``local_only`` it goes to local backends only: that is for a guard
    which has yet to decide whether the request must stay local.
    """

    def __init__(
        self,
        config: Judge,
        policy: Policy,
        handler: Handler,
        *,
        wanted: Collection[str] = frozenset(HARMS),
        local_only: bool = False,
        concurrency: int = CONCURRENCY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``config.model`` is a public model of ``policy``; ``wanted`` are the categories that it is told of."""
        self._config = config
        self._model = policy.resolve(config.model) or config.model
        self._format = FORMATS[config.format]
        self._wanted = [name for name in HARMS if name in wanted and config.action_on(name) != "ignore"]
        self._policy = policy
        self._handler = handler
        self._local_only = local_only
        self._slots = asyncio.Semaphore(concurrency)
        self._numbers = count(1)
        self._remembered: Remembered[list[str]] = Remembered(config.remember, clock=clock)
        self._clock = clock
        self._minute = 0
        self._asked_in_minute = 0

    async def judge(self, texts: Sequence[str], origin: Origin, asker: Call | None = None) -> list[Verdict]:
        """One verdict a text, whose finding spans the whole of it. Raises ``Unscanned``.

        Its usage is noted on the request ``asker``, whose tenant pays if the policy's ``billing`` says so.
        """
        if len(texts) == 1:
            return [await self._verdict(texts[0], origin, asker)]
        tasks = [asyncio.create_task(self._verdict(text, origin, asker)) for text in texts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _verdict(self, text: str, origin: Origin, asker: Call | None) -> Verdict:
        key = digest(asker.principal.tenant if asker is not None else "", origin, text)
        named, is_new = self._remembered.get(key), False
        if named is None:
            async with self._slots:
                named = self._remembered.get(key)  # by another that asked the same meanwhile
                if named is None:
                    named, is_new = await self._named(text, origin, asker), True
                    self._remembered.put(key, named)
        if asker is not None:
            _note(asker.receipt, remembered=0 if is_new else 1, found=named)
        return self._of(named, len(text))

    async def _named(self, text: str, origin: Origin, asker: Call | None) -> list[str]:
        """The categories that the model names."""
        self._count(asker)
        named = self._format.read(await self._ask(text, origin, asker))
        if named is None:
            raise Unscanned(f"the judge '{self._model}' gave no verdict that '{self._config.format}' has")
        return named

    def _of(self, named: Sequence[str], length: int) -> Verdict:
        actions = {name: self._config.action_on(name) for name in named}
        worst = max(named, key=lambda name: _SEVERITY[actions[name]], default=None)
        if worst is None or (action := actions[worst]) == "ignore":
            return Verdict((), 0.0, "judge")
        remedy = Remedy(action) if action is not None else None
        return Verdict((Finding(worst, 0, length, 1.0, remedy),), 1.0, "judge")

    def _count(self, asker: Call | None) -> None:
        """Raises ``Unscanned`` where it has been asked as often as it may be."""
        if asker is not None:
            asked = asker.receipt.notes.get("judge", {}).get("asked", 0)
            if asked >= self._config.max_per_request:
                raise Unscanned(
                    f"the judge was asked {asked} times about this request, as often as it may be"
                )
        minute = int(self._clock() // 60)
        if minute != self._minute:
            self._minute, self._asked_in_minute = minute, 0
        if self._asked_in_minute >= self._config.per_minute:
            raise Unscanned(f"the judge has been asked {self._config.per_minute} times in this minute")
        self._asked_in_minute += 1
        if asker is not None:
            _note(asker.receipt, model=self._model, paid_by=self._policy.billing.judge, asked=1)

    async def _ask(self, text: str, origin: Origin, asker: Call | None) -> str:
        call = self._call(text, origin, asker)
        parts: list[str] = []
        try:
            async with aclosing(self._handler(call)) as chunks:
                async for chunk in chunks:
                    content = chunk.delta.get("content") if chunk.delta is not None else None
                    if isinstance(content, str):
                        parts.append(content)
        except GatewayError as error:
            # Its message may repeat what was asked.
            raise Unscanned(f"the judge '{self._model}' failed: {error.code}") from None
        finally:
            if asker is not None:
                _note(asker.receipt, cost_usd=call.receipt.notes.get("quota", {}).get("cost_usd", 0.0))
        return "".join(parts)

    def _call(self, text: str, origin: Origin, asker: Call | None) -> Call:
        request_id = f"judge_{time.time_ns():x}_{next(self._numbers):x}"
        if asker is not None:
            request_id = f"{asker.request_id}-{request_id}"
        payer = Principal("judge", HOUSE, tier=HOUSE)
        if asker is not None and self._policy.billing.judge == "tenant":
            payer = asker.principal
        params = {"temperature": 0, "max_tokens": self._config.max_tokens or self._format.max_tokens}
        messages = self._format.messages(text, origin, self._wanted)
        return Call(
            request_id=request_id,
            principal=Principal("judge", HOUSE),
            payer=payer,
            request=ChatRequest(self._model, messages=messages, params=params),
            policy=self._policy,
            receipt=Receipt(request_id, time.time()),
            started=time.perf_counter(),
            headers={"x-request-id": request_id},
            local_only=self._local_only or (asker is not None and stays(asker)),
            residency=residency_of(asker) if asker is not None else None,
            purpose="judge",
        )


def _note(
    receipt: Receipt,
    *,
    model: str | None = None,
    paid_by: str | None = None,
    asked: int = 0,
    remembered: int = 0,
    cost_usd: float = 0.0,
    found: Sequence[str] = (),
) -> None:
    """Add to what the receipt tells of judges."""
    before = receipt.notes.get("judge", {})
    named = dict(before.get("found", {}))
    for name in found:
        named[name] = named.get(name, 0) + 1
    receipt.note(
        "judge",
        **({"model": model, "paid_by": paid_by} if model is not None else {}),
        asked=before.get("asked", 0) + asked,
        remembered=before.get("remembered", 0) + remembered,
        cost_usd=before.get("cost_usd", 0.0) + cost_usd,
        found=named,
    )


class Remembered(Generic[T]):
    """Verdicts that hold for a while, as a conversation's earlier turns come again with every new one: by a digest of
    what was judged, never the text. The least recently used make way."""

    def __init__(
        self, ttl: float, *, most: int = MAX_ENTRIES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``ttl`` in seconds; 0: nothing is remembered."""
        self._ttl = ttl
        self._most = most
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def get(self, key: bytes) -> T | None:
        known = self._known.get(key)
        if known is None:
            return None
        until, value = known
        if self._clock() >= until:
            del self._known[key]
            return None
        self._known.move_to_end(key)
        return value

    def put(self, key: bytes, value: T) -> None:
        if self._ttl <= 0:
            return
        self._known[key] = (self._clock() + self._ttl, value)
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)


def digest(*parts: str) -> bytes:
    """The same for the same parts, in the same order."""
    hashed = blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.digest()
