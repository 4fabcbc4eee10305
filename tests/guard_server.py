"""An HTTP server that judges texts by a function of the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fakes import FakeUpstream, Received, Script, reply


class GuardServer(FakeUpstream):
    """``answer`` makes the reply to each POST: a script, or a value to be sent as JSON."""

    def __init__(self, answer: Callable[[Received], Any]) -> None:
        super().__init__()
        self.answer = answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/check"

    @property
    def texts(self) -> list[str]:
        """What it was shown, in the gateway's own format."""
        return [one["text"] for request in self.requests for one in request.json()["texts"]]

    def next_script(self) -> Script:
        said = self.answer(self.requests[-1])
        return said if isinstance(said, tuple) else reply(said)


def judging(word: str, **verdict: Any) -> Callable[[Received], Any]:
    """``verdict`` for each text with ``word`` in it; without one, a finding where the word stands."""

    def answer(request: Received) -> Any:
        verdicts = []
        for one in request.json()["texts"]:
            at = one["text"].find(word)
            if at < 0:
                verdicts.append({})
            elif verdict:
                verdicts.append({name: _of(value, one["text"]) for name, value in verdict.items()})
            else:
                verdicts.append({"findings": [{"label": "word", "start": at, "end": at + len(word)}]})
        return {"verdicts": verdicts}

    return answer


def _of(value: Any, text: str) -> Any:
    return value(text) if callable(value) else value
