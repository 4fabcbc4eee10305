"""A model's server that keeps books of its own, to hold the gateway's against."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

from benchmarks.attacks.frame.gateway import Gateway
from tests.fakes import DONE, FakeUpstream, Script, Step, completion, delta, reply, sse, stream

PRICE = {"input": 1.0, "output": 10.0}
"""Dollars for a million tokens, as the policy has it: in nanodollars a token, a thousand times as much."""


class Provider(FakeUpstream):
    """Says ``wishes`` tokens, or as many as it may. What it computes is in ``books``, whoever still listens."""

    def __init__(self, wishes: Callable[[dict[str, Any]], int], *, silent: float = 0.0) -> None:
        """``wishes`` is asked with each request's body; ``silent`` are seconds before an answer ends."""
        super().__init__()
        self.wishes = wishes
        self.silent = silent
        self.text = "abc "
        """A token of an answer."""
        self.prompts: Counter[str] = Counter()
        """Tokens of prompts, by model."""
        self.answers: Counter[str] = Counter()
        """Tokens of answers, by model."""

    def nanodollars(self, *models: str) -> int:
        """What it bills, for these models or all, at ``PRICE``."""
        named = models or tuple(self.prompts)
        return sum(int(self.prompts[one] * 1e3 * PRICE["input"]) for one in named) + sum(
            int(self.answers[one] * 1e3 * PRICE["output"]) for one in named
        )

    def tokens(self, model: str) -> int:
        return self.prompts[model] + self.answers[model]

    def next_script(self) -> Script:
        asked = self.requests[-1].json()
        caps = [
            asked[name] for name in ("max_completion_tokens", "max_tokens") if asked.get(name) is not None
        ]
        count = min([self.wishes(asked), *caps])
        choices = asked.get("n") or 1
        prompt = sum(4 + len(str(one.get("content") or "")) // 4 for one in asked["messages"])
        self.prompts[asked["model"]] += prompt
        self.answers[asked["model"]] += count * choices
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": count * choices,
            "total_tokens": prompt + count * choices,
        }
        finish = "length" if count in caps else "stop"
        if asked.get("stream"):
            return self._streamed(self.text * count, choices, finish, usage)
        answer = completion(model=asked["model"], usage=usage)
        message = {"role": "assistant", "content": self.text * count}
        answer["choices"] = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": finish}
            for index in range(choices)
        ]
        return (self.silent, *reply(answer))

    def _streamed(self, text: str, choices: int, finish: str, usage: dict[str, int]) -> Script:
        steps: list[Step] = [sse(delta("", index=index, role="assistant")) for index in range(choices)]
        steps += [sse(delta(text, index=index)) for index in range(choices)]
        steps += [self.silent, *(sse(delta(index=index, finish=finish)) for index in range(choices))]
        return stream(*steps, sse({**delta(), "choices": [], "usage": usage}), DONE)


def spent(gateway: Gateway) -> list[dict[str, Any]]:
    """All that the ledger has, a row for each thing that was paid for. It is written some tenths of a second late."""
    path = gateway.state / "ledger.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM spent")]


async def spent_by(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """What the ledger has for one request, once it has it."""
    async with asyncio.timeout(30):
        while True:
            await asyncio.sleep(0.2)
            for row in spent(gateway):
                if row["request_id"] == request_id:
                    return row
