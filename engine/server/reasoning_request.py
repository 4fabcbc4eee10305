"""How much an answer is to reason: what clients of several APIs say about it, and what that means for a model.

- ``max_reasoning_tokens``, and vLLM's name ``thinking_token_budget``
- OpenAI's ``reasoning_effort``
- Anthropic's and DeepSeek's ``thinking``: ``{"type": "enabled" | "disabled", "budget_tokens": …}``
- OpenRouter's ``reasoning``: ``{"effort", "max_tokens", "enabled", "exclude"}``
- vLLM's ``chat_template_kwargs``, of which Qwen's ``enable_thinking`` is one, and ``include_reasoning``
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engine.core.sampling_params import Grammar, ReasoningBudget
from engine.errors import InvalidRequest
from engine.grammar.language import quoted
from engine.server.reasoning import HARMONY, Place, ReasoningFormat
from engine.server.requests import ChatBody
from engine.server.tokenizer import Tokenizer
from engine.server.tools import CALLS

FIELDS = (
    "include_reasoning",
    "max_reasoning_tokens",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "thinking_token_budget",
)
"""What a model that does not reason ignores."""

_BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192}
"""Tokens for each effort, as Google translates them; higher ones have no bound."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts that templates do not know, as those that they do."""
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, slots=True)
class ReasoningWish:
    budget: int | None = None
    """Most tokens."""
    enabled: bool | None = None
    """``None``: as the model does by itself."""
    effort: str | None = None
    hidden: bool = False
    """It is not sent."""


def wish_of(body: ChatBody) -> ReasoningWish:
    """Raises ``InvalidRequest``."""
    thinking, reasoning = body.thinking or {}, body.reasoning or {}
    effort = _effort(body.reasoning_effort or reasoning.get("effort"))
    budgets = (
        (body.max_reasoning_tokens, "max_reasoning_tokens"),
        (body.thinking_token_budget, "thinking_token_budget"),
        (thinking.get("budget_tokens"), "thinking.budget_tokens"),
        (reasoning.get("max_tokens"), "reasoning.max_tokens"),
    )
    budget = next((_count(given, param) for given, param in budgets if given is not None), None)
    enabled: bool | None = None
    if thinking.get("type") == "disabled" or reasoning.get("enabled") is False or effort == "none":
        enabled = False
    elif thinking.get("type") == "enabled" or reasoning.get("enabled") is True:
        enabled = True
    if budget == 0:
        enabled = False
    elif enabled is False:
        budget = 0
    hidden = body.include_reasoning is False or reasoning.get("exclude") is True
    return ReasoningWish(budget, enabled, effort, hidden)


def variables(wish: ReasoningWish, body: ChatBody, format: ReasoningFormat | None) -> dict[str, Any]:
    """What the chat template gets beside the messages. Raises ``InvalidRequest``."""
    given = body.chat_template_kwargs or {}
    if wrong := sorted(_OURS & given.keys()):
        raise InvalidRequest(
            f"'chat_template_kwargs' may not have '{wrong[0]}': it follows from the request's other fields.",
            param="chat_template_kwargs",
        )
    found: dict[str, Any] = {}
    if format is not None and wish.enabled is not None:
        found = dict.fromkeys(format.variables, wish.enabled)
    if format is not None and wish.effort is not None:
        found["reasoning_effort"] = _LEVELS.get(wish.effort, wish.effort)
    return found | given


def budget_of(
    wish: ReasoningWish,
    format: ReasoningFormat,
    place: Place,
    tokenizer: Tokenizer,
    grammar: Grammar | None = None,
) -> ReasoningBudget | None:
    """``None`` without one, and where it cannot be held: the model's markers are no tokens of their own. ``grammar``:
    the answer's."""
    most = wish.budget
    if most is None and format is not HARMONY and wish.effort is not None:
        most = _BUDGETS.get(wish.effort)
    if most is None or place == "outside":
        return None
    end = tokenizer.added(format.end)
    begin = "analysis" if format is HARMONY else format.begin
    begins = None if place == "inside" else tokenizer.token(begin)
    if end is None or (place == "before" and begins is None):
        return None
    texts = format.closing
    if format is HARMONY and grammar is not None and grammar.source.startswith(f"{CALLS}\n"):
        # A call's header goes on from there.
        texts = (*texts[:-2], "commentary")
    closing = [number for text in texts for number in tokenizer.encode(text, special=False)]
    # In a channel, the end of its header comes before the first token of reasoning.
    return ReasoningBudget(most + (format is HARMONY), begins, end, tuple(closing))


def before_answer(
    format: ReasoningFormat, place: Place, tokenizer: Tokenizer, *, headed: bool = False
) -> str:
    """Reasoning in Lark: what may come before an answer whose form is asked for. ``Grammar.before`` has it.
    ``headed``: the answer's channel is part of the answer."""
    mark = tokenizer.marker
    if format is HARMONY:
        channel, end, message, start = map(mark, format.markers)
        header = "" if headed else f' {channel} "final" {message}'
        return (
            f"analysis*{header}\n"
            f'analysis: {channel} "analysis" {message} TEXT {end} {start} "assistant"\nTEXT: /(?s:.*)/'
        )
    end = mark(format.end)
    thought = f"thought[suffix={end}]: /(?s:.*)/" if end == quoted(format.end) else f"thought: TEXT {end}"
    opened = "thought" if place == "inside" else f"(SPACE {mark(format.begin)} thought)?"
    return f"{opened} SPACE\n{thought}\nTEXT: /(?s:.*)/\nSPACE: /\\s{{0,8}}/"


def with_reasoning(grammar: Grammar, format: ReasoningFormat, place: Place, tokenizer: Tokenizer) -> Grammar:
    """``grammar``, which the answer alone has to follow."""
    if place == "outside" or (grammar.trigger is not None and format is HARMONY):
        return grammar
    if grammar.trigger is not None:
        opened = "" if place == "inside" else format.begin
        return replace(grammar, trigger=replace(grammar.trigger, thought=(opened, format.end)))
    headed = grammar.kind == "own" and grammar.source.startswith(CALLS)
    return Grammar(grammar.kind, grammar.source, "", before_answer(format, place, tokenizer, headed=headed))


def given_fields(body: ChatBody) -> list[str]:
    return [name for name in FIELDS if getattr(body, name) is not None]


def _effort(given: Any) -> str | None:
    """One of a few words: templates write it into the prompt, where guards and limits look for no caller's text."""
    if given is None or (isinstance(given, str) and given in _EFFORTS):
        return given
    raise InvalidRequest(
        f"'reasoning_effort' must be one of {', '.join(_EFFORTS)}.", param="reasoning_effort"
    )


def _count(given: Any, param: str) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise InvalidRequest(f"'{param}' must be a number of tokens, 0 or more.", param=param)
