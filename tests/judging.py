"""A model server whose model ``judge`` judges by a rule that the test gives, and policies that have it judge."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import orjson

from tests import faults
from tests.fakes import Action, Script
from tests.faults import Asked, Fault, ModelServer, sound
from tests.serving import Gateway, a_policy

PRICES = {name: {"input": 1.0, "output": 1.0} for name in ("big", "small")} | {
    "judge": {"input": 10.0, "output": 10.0}
}
_ANSWER = re.compile(r"<<(?:first |second )?answer (\w+)>>\n(.*?)\n<</", re.DOTALL)

Points = Callable[[str], object]


class JudgingServer(ModelServer):
    """``points`` gives an answer's text its points; of two the one with more is better. What it gives that is no number
    is said as it is."""

    def __init__(self, points: Points = lambda text: 5, **models: Fault) -> None:
        super().__init__(**({"big": sound, "small": sound} | models))
        self.points = points
        self.judged: list[str] = []
        """What it was asked."""
        self.silent = self.broken = False

    def next_script(self) -> Script:
        body = self.requests[-1].json()
        if body["model"] != "judge":
            return super().next_script()
        text = body["messages"][0]["content"]
        self.judged.append(text)
        if self.silent or self.broken:
            return (Action.HANG,) if self.silent else faults.broken(Asked(False, "", 0))
        return sound(Asked(bool(body.get("stream")), self._said(text), 50))

    def _said(self, text: str) -> str:
        points = [self.points(answer) for _, answer in _ANSWER.findall(text)]
        if any(not isinstance(one, int) for one in points):
            return str(points[0])
        if len(points) == 1:
            return orjson.dumps({"why": "so", "score": points[0]}).decode()
        first, second = points
        better = "tie" if first == second else "first" if str(first) > str(second) else "second"
        return orjson.dumps({"why": "so", "better": better}).decode()


def judging(url: str, *, shadow: float | None = None, **evaluation: Any) -> dict[str, Any]:
    """``m`` is answered by ``big``, and judged by ``judge``; its shadow is ``small``."""

    def model(name: str, **more: Any) -> dict[str, Any]:
        return {"targets": [{"backend": "up", "model": name}], **more}

    copied = {} if shadow is None else {"shadow": {"model": "small", "share": shadow}}
    return a_policy(
        url,
        models={"m": model("big", **copied), "small": model("small"), "judge": model("judge")},
        prices=PRICES,
        evaluation={"judge": "judge", "share": 1.0, "models": ["m"], **evaluation},
    )


async def counted(gateway: Gateway, outcome: str, count: float = 1, model: str = "m") -> dict[str, float]:
    """The figures, once so many answers of the model have come to ``outcome``."""
    name = f'tollgate_evaluation_answers_total{{model="{model}",outcome="{outcome}"}}'
    async with asyncio.timeout(300):
        while (figures := await gateway.metrics()).get(name, 0) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return figures


def says(text: str) -> Fault:
    return lambda asked: faults.sound(Asked(asked.stream, text, 7))
