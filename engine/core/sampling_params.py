"""How a request's tokens are sampled, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["json_schema", "regex", "lark", "own"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """Where in an answer a grammar begins to hold; what comes before is free."""

    sign: str
    """A regular expression of at most 64 characters' reach: anywhere."""
    opening: str = ""
    """One that matches at the answer's beginning, up to and with the character from which the grammar holds."""
    thought: tuple[str, str] | None = None
    """The markers of reasoning before the answer, in which nothing counts; an empty first one: the prompt has it."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like; ``engine/grammar`` reads it."""

    kind: Kind
    """``json_schema``: a schema as JSON; ``regex``: Rust's syntax; ``lark``: a caller's grammar in llguidance's variant
    of Lark; ``own``: one of ours, made of texts and JSON schemas."""
    source: str
    prefix: str = ""
    """The beginning of the answer, where the prompt already holds it."""
    before: str = ""
    """What may come before what the grammar says: a sequence in Lark, and on further lines the rules that it names."""
    trigger: Trigger | None = None
    """Until it is met, nothing is masked. From there on the grammar says what may come, free text included."""


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """How long an answer may reason before it has to go on; ``engine/worker/reasoning_budget.py`` holds it."""

    tokens: int
    begin: int | None
    """The token among the answer's first ones that begins its reasoning; ``None``: the prompt has it."""
    end: int
    """The token that ends it."""
    closing: tuple[int, ...]
    """What is said once the tokens are used up; ``end`` comes first."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    """Most tokens to generate, at least 1."""
    min_tokens: int = 0
    """Tokens before which none of ``stop_token_ids`` is sampled."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """Least probability of a token, as a share of the likeliest one's; 0 is off."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token that was generated before."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit once for each time that it was generated."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens of the prompt and the answer; 1 is off."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)"""
    seed: int = 0
    """64 bits. The n-th token of a request is sampled from (seed, n) alone, whatever the batch, chunking and
    preemption."""
    stop_token_ids: frozenset[int] = frozenset()
    """Any of these ends the request; it is the last of its tokens."""
    logprobs: int | None = None
    """Most likely tokens to report beside each sampled token; ``None``: no logprobs."""
    prompt_logprobs: int | None = None
    """Most likely tokens to report beside each prompt token but the first; ``None``: no prompt logprobs."""
    grammar: Grammar | None = None
    reasoning: ReasoningBudget | None = None
    """``None``: no bound but ``max_tokens``."""
