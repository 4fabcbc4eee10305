"""What callers of other dialects say about thinking, for the bundled engine, which knows OpenAI's and Anthropic's words
for it; the canonical form leaves it out, as most servers refuse what they do not know."""

from __future__ import annotations

from dataclasses import replace

from gateway.types import ChatRequest, Json
from gateway.wire.anthropic.thinking import with_thinking
from gateway.wire.gemini.body_to_request import DIALECT as GEMINI


def for_engine(request: ChatRequest) -> ChatRequest:
    """``request`` with ``thinking``, and what was thought before as ``reasoning_content``, which templates read."""
    native = request.native
    if native is None:
        return request
    if native.dialect == GEMINI:
        thinking = _from_gemini(native.body)
        return request if thinking is None else request.having({**request.params, "thinking": thinking})
    thought = with_thinking(request)
    if not any("thinking_blocks" in message for message in thought.messages or ()):
        return thought
    return replace(thought, messages=tuple(map(_readable, thought.messages or ())))


def _readable(message: Json) -> Json:
    blocks = message.get("thinking_blocks")
    if blocks is None:
        return message
    text = "\n\n".join(block["thinking"] for block in blocks if isinstance(block.get("thinking"), str))
    rest = {name: value for name, value in message.items() if name != "thinking_blocks"}
    return {**rest, "reasoning_content": text} if text else rest


def _from_gemini(body: Json) -> Json:
    """A ``thinkingBudget`` of -1 leaves it to the model."""
    config = body.get("generationConfig")
    asked = config.get("thinkingConfig") if isinstance(config, dict) else None
    budget = asked.get("thinkingBudget") if isinstance(asked, dict) else None
    if type(budget) is not int or budget < 0:
        return None
    return {"type": "enabled", "budget_tokens": budget} if budget else {"type": "disabled"}
