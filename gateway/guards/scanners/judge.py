"""A judge model with Llama Guard's output format, called through the gateway's own backends.

It answers ``safe``, or ``unsafe`` and on the next line hazard codes
(https://www.llama.com/docs/model-cards-and-prompt-formats/llama-guard-3/). Its chat template holds the
instructions; only the conversation to judge is sent.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from itertools import count

from gateway.errors import GatewayError
from gateway.findings import Finding
from gateway.guards.scanners.locality import stays
from gateway.guards.scanners.scanner import Origin, Unscanned, Verdict
from gateway.policy.schema import Policy
from gateway.types import HOUSE, Call, ChatRequest, Handler, Json, Principal, Receipt

HAZARDS: Mapping[str, str] = {
    "S1": "violent_crimes",
    "S2": "non_violent_crimes",
    "S3": "sex_crimes",
    "S4": "child_sexual_exploitation",
    "S5": "defamation",
    "S6": "specialized_advice",
    "S7": "privacy",
    "S8": "intellectual_property",
    "S9": "indiscriminate_weapons",
    "S10": "hate",
    "S11": "self_harm",
    "S12": "sexual",
    "S13": "elections",
    "S14": "code_interpreter_abuse",
}
"""Llama Guard 3's, by code; others go by their code."""

CONCURRENCY = 8
"""Texts that one judge scores concurrently."""
_PARAMS = {"temperature": 0, "max_tokens": 64}  # enough for all codes
_MODELS_OWN = frozenset({"assistant", "answer"})
_ANSWER = re.compile(r"\s*(?:(safe)|unsafe(?:\s+(S\d{1,2})(?:\s*,\s*S\d{1,2})*)?)\s*", re.IGNORECASE)


class LlamaGuard:
    """A ``Judge``. ``handler`` begins behind guards and caches, and bills ``call.payer``; ``model`` is a public model
    of ``policy``.

    A text may go wherever its request may. With ``local_only`` it goes to local backends only: that is for a guard
    which has yet to decide whether the request must stay local.
    """

    def __init__(
        self,
        model: str,
        policy: Policy,
        handler: Handler,
        *,
        local_only: bool = False,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self._model = policy.resolve(model) or model
        self._policy = policy
        self._handler = handler
        self._local_only = local_only
        self._slots = asyncio.Semaphore(concurrency)
        self._numbers = count(1)

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
        async with self._slots:
            reply = await self._ask(text, origin, asker)
        match = _ANSWER.fullmatch(reply)
        if match is None:
            raise Unscanned(f"the judge '{self._model}' answered neither 'safe' nor 'unsafe'")
        if match[1]:
            return Verdict((), 0.0, "judge")
        code = (match[2] or "").upper()
        return Verdict((Finding(HAZARDS.get(code, code or "unsafe"), 0, len(text)),), 1.0, "judge")

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
                self._tell(asker.receipt, call)
        return "".join(parts)

    def _tell(self, receipt: Receipt, call: Call) -> None:
        before = receipt.notes.get("judge", {})
        cost = call.receipt.notes.get("quota", {}).get("cost_usd", 0.0)
        receipt.note(
            "judge",
            model=self._model,
            asked=before.get("asked", 0) + 1,
            cost_usd=before.get("cost_usd", 0.0) + cost,
            paid_by=self._policy.billing.judge,
        )

    def _call(self, text: str, origin: Origin, asker: Call | None) -> Call:
        request_id = f"judge_{time.time_ns():x}_{next(self._numbers):x}"
        if asker is not None:
            request_id = f"{asker.request_id}-{request_id}"
        payer = Principal("judge", HOUSE, tier=HOUSE)
        if asker is not None and self._policy.billing.judge == "tenant":
            payer = asker.principal
        messages: tuple[Mapping[str, Json], ...] = ({"role": "user", "content": text},)
        if origin in _MODELS_OWN:
            # The conversation's last turn is the one that is judged.
            messages = ({"role": "user", "content": ""}, {"role": "assistant", "content": text})
        return Call(
            request_id=request_id,
            principal=Principal("judge", HOUSE),
            payer=payer,
            request=ChatRequest(self._model, messages=messages, params=_PARAMS),
            policy=self._policy,
            receipt=Receipt(request_id, time.time()),
            started=time.perf_counter(),
            headers={"x-request-id": request_id},
            local_only=self._local_only or (asker is not None and stays(asker)),
            purpose="judge",
            trace=None if asker is None else asker.trace,
        )
