"""A recorded request as the gateway gets it. Texts are made up: four characters for each token that was counted, equal
where the record says that prompts are, and with a mark for each guard that found something."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.metering.estimate import CHARACTERS_PER_TOKEN, MESSAGE_OVERHEAD
from gateway.policy.schema import Policy
from gateway.recording.recorded_request import RecordedRequest
from gateway.types import ChatRequest

CHARACTERS = int(CHARACTERS_PER_TOKEN)
AROUND = MESSAGE_OVERHEAD + 3
"""Tokens that the gateway counts beside a message's text."""
ROUTES = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "generate": "/v1beta/models",
}


def mark(guard: str) -> str:
    """Stands in a text for what the guard found in it."""
    return f"[[{guard}]]"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call's backend needs to know of the record."""

    record: RecordedRequest
    answer: str
    """The marks in its answer."""
    left: bool = False
    """Its caller left before the end."""


class Prompts:
    """Those for one policy: what it does not look at is the same in all texts."""

    def __init__(self, policy: Policy, stream: bool | None = None) -> None:
        """``stream``: whether answers are; None: as recorded."""
        self._stream = stream
        self._told_apart = policy.caches.exact is not None
        self._affine = any(model.select in ("prefix_affinity", "score") for model in policy.models.values())
        self._directions = {name: guard.on for name, guard in policy.guards.items()}
        self._filler = "x" * 65536

    def marks(self, one: RecordedRequest) -> tuple[str, str]:
        """Those in the prompt, and those in the answer: where the guard looks, and where it found it."""
        prompt: list[str] = []
        answer: list[str] = []
        for guard, _ in one.findings:
            directions = self._directions.get(guard)
            if directions is None:
                continue
            late = "output" in directions and (one.outcome == "revoked" or "input" not in directions)
            (answer if late else prompt).append(mark(guard))
        return " ".join(prompt), " ".join(answer)

    def request(self, one: RecordedRequest, model: str, marks: str, name: str) -> ChatRequest:
        """``name`` tells it from all others."""
        text = self._text(one, marks, name)
        streams = one.stream if self._stream is None else self._stream
        params = {} if one.max_tokens is None else {"max_tokens": one.max_tokens}
        if one.api == "embeddings":
            return ChatRequest(model, prompt=text, embeds=True)
        if one.api == "completions":
            return ChatRequest(model, prompt=text, stream=streams, params=params)
        return ChatRequest(model, ({"role": "user", "content": text},), stream=streams, params=params)

    def _text(self, one: RecordedRequest, marks: str, name: str) -> str:
        size = max(1, CHARACTERS * (one.prompt_tokens - AROUND))
        end = ""
        if marks:
            end = f" {marks}"
        if self._told_apart:
            end += f" {one.prompt_key or name}"
        begin = ""
        if self._affine and one.blocks:
            times = max(1, CHARACTERS * one.block_tokens // 16)
            begin = "".join(
                [f"{block & (2**64 - 1):016x}" * times for block in one.blocks[: size // (16 * times) + 1]]
            )
        left = size - len(begin) - len(end)
        filler = self._filler
        if left > len(filler):
            filler = self._filler = "x" * (2 * left)
        return f"{begin}{filler[: max(0, left)]}{end}"
