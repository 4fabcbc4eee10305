"""A scanner that looks for one thing in requests and for another in answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.guards.scanners.scanner import Origin, Scanner, Verdict
from gateway.types import Call


class ByOrigin:
    """A ``Scanner`` made of two, of which ``answers`` has the texts that the model writes now."""

    def __init__(self, requests: Scanner, answers: Scanner) -> None:
        self.origins = requests.origins
        self.longest = max(requests.longest, answers.longest)
        self._requests = requests
        self._answers = answers

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        return self._of(origin).quick(text, origin)

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return await self._of(origin).thorough(texts, origin, call)

    def _of(self, origin: Origin) -> Scanner:
        return self._answers if origin == "answer" else self._requests
