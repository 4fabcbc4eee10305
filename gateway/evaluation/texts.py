"""A question and its answer as a judge is shown them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.evaluation.judge import shown
from gateway.evaluation.work import Asked
from gateway.recording.kept_answer import KeptAnswer
from gateway.recording.masking import unmasked


async def texts_of(asked: Asked, answer: KeptAnswer, *, masked: bool) -> tuple[str, str] | None:
    """Question and answer; None where there is no text, or one that could not be masked. Of several choices the first.

    ``masked``: as recordings have texts, else as the model that answered had them.
    """
    messages: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]
    if masked:
        told = await asked.masker.masked(answer, asked.principal, asked.route)
        if told is None:
            return None
        both = orjson.loads(told)
        messages, answers = both["messages"], both["answers"]
    else:
        plain = unmasked(answer)
        if plain is None:
            return None
        messages, answers = plain
    if not answers:
        return None
    question = "\n\n".join(f"{message.get('role')}: {_shown(message)}" for message in messages)
    said = _shown(answers[0])
    return (question, said) if question.strip() and said.strip() else None


def _shown(message: Mapping[str, Any]) -> str:
    text = _text(message.get("content")) or _text(message.get("refusal"))
    return shown(text, _calls(message.get("tool_calls")))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _calls(calls: Any) -> Iterator[tuple[str, str]]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield str(function.get("name") or ""), str(function.get("arguments") or "")
