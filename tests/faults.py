"""A model's server that fails in every way we know, on request: each request takes the next of its faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from tests.fakes import DONE, Action, FakeUpstream, Script, completion, delta, head, reply, sse, stream

ANSWER = "The quick brown fox\njumps over  the lazy dog, twice; then it sleeps."
PROMPT_TOKENS = 7


@dataclass(frozen=True)
class Asked:
    """What a request wants to hear."""

    stream: bool
    text: str
    """The whole answer, or what is left of it where the request holds its beginning."""
    prompt_tokens: int

    @property
    def words(self) -> list[str]:
        return words(self.text)

    @property
    def usage(self) -> dict[str, int]:
        said = len(self.words)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": said,
            "total_tokens": self.prompt_tokens + said,
        }

    def events(self) -> list[bytes]:
        """Its streamed answer; one word an event, the role before, the finish, the usage and the end mark after."""
        said = [delta("", role="assistant"), *(delta(word) for word in self.words), delta(finish="stop")]
        usage = {**delta(), "choices": [], "usage": self.usage}
        return [*(sse(event) for event in said), sse(usage), DONE]

    def body(self) -> bytes:
        return orjson.dumps({**completion(self.text), "usage": self.usage})


def words(text: str) -> list[str]:
    """What stands for tokens here: a word with the space before it, or the space at the end."""
    return re.findall(r"\s*\S+|\s+$", text)


Fault = Callable[[Asked], Script]


class FaultServer(FakeUpstream):
    """Each POST takes the next of ``faults``, and the last one is kept for the rest.

    With ``continues`` it goes on from a partial answer, as a server with ``continue_final_message`` does, without it
    it says everything again; ``prefill`` is the error with which it refuses one.
    """

    def __init__(
        self, *faults: Fault, answer: str = ANSWER, continues: bool = False, prefill: Script | None = None
    ) -> None:
        super().__init__()
        self.faults = list(faults) or [sound]
        self._answer = answer
        self.continues = continues
        self._prefill = prefill

    def next_script(self) -> Script:
        body = self.requests[-1].json()
        text, prompt = self._answer, PROMPT_TOKENS
        if body.get("continue_final_message"):
            if self._prefill is not None:
                return self._prefill
            if self.continues:
                begun = body["messages"][-1]["content"]
                if not text.startswith(begun):
                    return bad_request(Asked(False, "", 0))
                text = text[len(begun) :]
                prompt += len(words(begun))
        fault = self.faults.pop(0) if len(self.faults) > 1 else self.faults[0]
        return fault(Asked(bool(body.get("stream")), text, prompt))


class ModelServer(FakeUpstream):
    """Answers as each model that it serves does: ``faults`` are by the model's name."""

    def __init__(self, **faults: Fault) -> None:
        super().__init__()
        self.faults = faults

    def next_script(self) -> Script:
        body = self.requests[-1].json()
        model = body["model"]
        return self.faults[model](Asked(bool(body.get("stream")), f"Here is {model}.", PROMPT_TOKENS))

    @property
    def asked(self) -> list[str]:
        """The models that requests named, in their order."""
        return [request.json()["model"] for request in self.requests]


def sound(asked: Asked) -> Script:
    return stream(*asked.events()) if asked.stream else reply(asked.body())


def _error(status: int, message: str, **more: Any) -> Script:
    headers = more.pop("headers", None)
    return reply({"error": {"message": message, **more}}, status=status, headers=headers)


def rate_limited(asked: Asked) -> Script:
    return _error(429, "slow down", type="rate_limit_error")


def rate_limited_for(seconds: str) -> Fault:
    return lambda asked: _error(429, "slow down", headers={"retry-after": seconds})


def broken(asked: Asked) -> Script:
    return _error(500, "something came loose")


def unavailable(asked: Asked) -> Script:
    return _error(503, "no workers left")


def bad_request(asked: Asked) -> Script:
    return _error(400, "that is no request", type="invalid_request_error", param="messages", code="bad")


def no_such_model(asked: Asked) -> Script:
    return _error(404, "no such model here", type="invalid_request_error", code="model_not_found")


def bad_key(asked: Asked) -> Script:
    return _error(401, "who are you")


def context_length(asked: Asked) -> Script:
    return _error(
        400,
        "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens.",
        type="invalid_request_error",
        param="messages",
        code="context_length_exceeded",
    )


def content_policy(asked: Asked) -> Script:
    return _error(
        400,
        "The response was filtered due to the prompt triggering the content management policy.",
        param="prompt",
        code="content_filter",
    )


def reset(asked: Asked) -> Script:
    """Before the headers."""
    return (Action.ABORT,)


def silence(asked: Asked) -> Script:
    return (Action.HANG,)


def slow(seconds: float) -> Fault:
    """A sound answer, the first token of which takes its time."""

    def fault(asked: Asked) -> Script:
        opening, *rest = sound(asked)
        if not asked.stream:
            return (seconds, opening)
        role, *words_ = rest
        return (opening, role, seconds, *words_)

    return fault


def _two_thirds(asked: Asked) -> tuple[bytes, ...]:
    if asked.stream:
        events = asked.events()
        return tuple(
            step
            for step in stream(*events[: 1 + len(asked.words) * 2 // 3], whole=False)
            if isinstance(step, bytes)
        )
    body = asked.body()
    headers = head(200, {"content-type": "application/json", "content-length": str(len(body))})
    return (headers + body[: len(body) * 2 // 3],)


def cut(asked: Asked) -> Script:
    """At two thirds."""
    # The reset follows when what was sent is surely read: it would overtake it.
    return (*_two_thirds(asked), 0.02, Action.ABORT)


def stall(asked: Asked) -> Script:
    """At two thirds."""
    return (*_two_thirds(asked), Action.HANG)


def malformed(asked: Asked) -> Script:
    """At two thirds it is HTTP no more; a whole answer is JSON no more."""
    if asked.stream:
        return (*_two_thirds(asked), b"zz\r\nnot a chunk\r\n", Action.HANG)
    return reply(asked.body()[:-9])


def surplus(asked: Asked) -> Script:
    """A thousand choices where one was wanted."""
    choices = [{"index": index, "finish_reason": "stop"} for index in range(1000)]
    if asked.stream:
        together = [{**choice, "delta": {"content": asked.text}} for choice in choices]
        return stream(sse({**delta(), "choices": together}), DONE)
    together = [{**choice, "message": {"content": asked.text}} for choice in choices]
    return reply({**completion(), "choices": together})


def one_bad_event(asked: Asked) -> Script:
    """In an otherwise sound stream."""
    if not asked.stream:
        return sound(asked)
    events = asked.events()
    return stream(*events[:3], sse(b'{"choices": [{"delta'), *events[3:])


def unfinished(asked: Asked) -> Script:
    """All words, but neither a finish nor ``[DONE]``, on a connection closed in good order."""
    if asked.stream:
        return stream(*asked.events()[:-3])
    body = asked.body()
    return (
        head(200, {"content-type": "application/json", "content-length": str(len(body))}) + body[:-1],
        Action.CLOSE,
    )


def error_event(asked: Asked) -> Script:
    """At two thirds."""
    if not asked.stream:
        return reply({"error": {"message": "out of memory", "type": "server_error"}})
    events = asked.events()
    return stream(*events[: 1 + len(asked.words) * 2 // 3], sse({"error": {"message": "out of memory"}}))
