"""What a request that has ended says of its model and route; counted in a thread, a moment later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.drift.hour_sketch import HourSketch
from gateway.drift.language import LOOKED_AT, language_of
from gateway.experiments.sketch import bin_of
from gateway.observe.ended import Ended
from gateway.recording.kept_answer import KeptAnswer
from gateway.sidecar.api import PROJECTED
from gateway.types import Call, ChatRequest

JSON_FORMATS = frozenset(["json_object", "json_schema"])


@dataclass(frozen=True, slots=True)
class Seen:
    model: str
    route: str
    at: float
    """Unix time, of its end."""
    ended: Ended
    question: str
    """The beginning of the last message, for its language; it is not kept."""
    projection: tuple[int, ...] = ()
    """Of the question's embedding, in steps, where one was made."""
    answer: KeptAnswer | None = None
    """Where JSON was asked for."""

    def count(self, sketch: HourSketch) -> None:
        ended = self.ended
        is_fresh = ended.cached is None
        refused = ended.model_refused
        if is_fresh and (refused or ended.error is None):
            sketch.count("refusals", int(refused))
        if self.question:
            sketch.count("languages", language_of(self.question))
        for number, place in enumerate(self.projection[:PROJECTED]):
            sketch.count(f"embedding_{number}", place)
        if ended.error is not None:
            return
        usage = ended.usage
        if usage is not None and usage.prompt:
            sketch.count("prompt_tokens", bin_of(usage.prompt))
        if not is_fresh:
            return
        if usage is not None and usage.completion:
            sketch.count("completion_tokens", bin_of(usage.completion))
        if ended.stream and ended.first_token:
            sketch.count("first_token", bin_of(ended.first_token))
        if inter_token := ended.inter_token:
            sketch.count("inter_token", bin_of(inter_token))
        sketch.count("seconds", bin_of(ended.seconds))
        if ended.is_settled and ended.bill.nanodollars:
            sketch.count("cost", bin_of(ended.bill.nanodollars))
        if self.answer is not None and (fails := is_no_json(self.answer)) is not None:
            sketch.count("json_failures", int(fails))


def seen(call: Call, ended: Ended, at: float, answer: KeptAnswer | None) -> Seen:
    candidate = ended.candidate
    # Taken out, not read: a receipt has nothing that is made of a prompt's content.
    projection = ended.noted.get("cache", {}).pop("projection", ())
    return Seen(
        candidate.model if candidate is not None else call.model,
        call.route,
        at,
        ended,
        question_of(call.request),
        projection,
        answer,
    )


def question_of(request: ChatRequest) -> str:
    """The beginning of the last message's text; of a prompt's."""
    if request.messages is None:
        prompt = request.prompt
        first = prompt[0] if isinstance(prompt, list) and prompt else prompt
        return first[:LOOKED_AT] if isinstance(first, str) else ""
    for message in reversed(request.messages):
        if message.get("role") == "user":
            return _text(message.get("content"))
    return ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content[:LOOKED_AT]
    if isinstance(content, list):
        for part in content:
            if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
                return text[:LOOKED_AT]
    return ""


def asks_for_json(request: ChatRequest) -> bool:
    form = request.params.get("response_format")
    return isinstance(form, Mapping) and form.get("type") in JSON_FORMATS


def is_no_json(answer: KeptAnswer) -> bool | None:
    """None where it says nothing: tools were called, or the text is not all there."""
    texts = [message.get("content") for message in answer.messages]
    if not answer.is_whole or not texts or any(not isinstance(text, str) for text in texts):
        return None
    return not all(_parses(str(text)) for text in texts)


def _parses(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            json.loads(text)  # takes what the other refuses: numbers of any size, lone surrogates
        except (ValueError, RecursionError):
            return False
    return True
