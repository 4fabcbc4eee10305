"""How many tokens a request will need, without a tokenizer: from its text, and from what earlier answers reported.

Estimates lean to the high side, as a reservation must cover what is really used.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import orjson

from gateway.media import kind_of
from gateway.metering.media_tokens import MediaReader
from gateway.types import Call, ChatRequest, Json, TokenEstimate, Usage

Name = TypeVar("Name")
Figure = TypeVar("Figure")

CHARACTERS_PER_TOKEN = 4.0
"""Of English, with most tokenizers; the learned factor says how far a model is from that."""
MESSAGE_OVERHEAD = 4

FIRST_ANSWER = 512
"""Tokens reserved for an answer of which nothing is known, and no cap declared."""
FIRST_EXPECTED = 256
FIRST_FACTOR = 1.4
SHORT = 64.0
"""Below this many tokens what a chat template adds outweighs the text."""
MOST_REMEMBERED = 10_000


@dataclass(slots=True)
class LearnedEstimate(TokenEstimate):
    """An estimate, and what it was made of."""

    model: str
    text: float
    """Tokens of the prompt at ``CHARACTERS_PER_TOKEN``; 0 where the prompt's own tokens were counted."""
    answers: int
    cap: int | None
    """The declared cap on all answers together."""
    least: int
    """The prompt without what was learned, where that makes it smaller: no reason to refuse it lies in the past."""
    usual: int = FIRST_ANSWER
    """Tokens that one answer seldom goes beyond."""
    known: bool = False
    """Whether that, and ``expected``, is experience."""
    thoughts: int = 0
    """Tokens that the answers' thoughts seldom go beyond, as far as the model's server reports them."""

    def holding(self, prompt: int, expected: int, reserved: int) -> LearnedEstimate:
        """The same with these figures; ``dataclasses.replace`` takes three times as long."""
        return LearnedEstimate(
            *(prompt, expected, reserved, self.model, self.text, self.answers, self.cap, self.least),
            *(self.usual, self.known),
        )


@dataclass(slots=True)
class _Figure:
    """A mean that forgets, and its mean deviation, begun as TCP's round-trip time is (RFC 6298)."""

    mean: float
    deviation: float
    seen: int = 0

    def add(self, value: float, *, rise: float = 0.125, fall: float = 0.125) -> None:
        if not self.seen:
            self.mean, self.deviation = value, value / 2
        else:
            error = value - self.mean
            self.deviation += 0.125 * (abs(error) - self.deviation)
            self.mean += (rise if error > 0 else fall) * error
        self.seen += 1

    @property
    def upper(self) -> float:
        return self.mean + 2 * self.deviation


class _Prompts:
    """Tokens of a model's prompts: a factor on the text, and a fixed part that its chat template adds."""

    def __init__(self) -> None:
        self._factor = _Figure(FIRST_FACTOR, 0.0)
        self._fixed = _Figure(0.0, 0.0)
        self._upper = FIRST_FACTOR, 0.0
        """Of both."""

    def tokens(self, text: float) -> int:
        factor, fixed = self._upper
        return 1 + int(text * factor + fixed)

    def learn(self, text: float, tokens: int) -> None:
        self._learn(text, tokens)
        self._upper = self._factor.upper, self._fixed.upper

    def _learn(self, text: float, tokens: int) -> None:
        # A long prompt trains the factor, a short one the fixed part. Rising fast and falling slowly keeps
        # the estimate above the middle.
        if text >= SHORT:
            self._learn_factor(max(0.05, (tokens - self._fixed.mean) / text))
            return
        fixed = tokens - text * self._factor.mean
        if fixed <= 0 and text:
            # No more than the estimate for the text alone: where none is long, short prompts train the factor.
            self._learn_factor(max(0.05, tokens / text))
        self._fixed.add(max(0.0, fixed), rise=0.3, fall=0.05)

    def _learn_factor(self, factor: float) -> None:
        if not self._factor.seen:
            self._factor = _Figure(factor, 0.1 * factor, 1)
        else:
            self._factor.add(factor, rise=0.3, fall=0.05)


ENOUGH = 200
"""Answers of one kind after which another teaches little."""


class Estimator:
    """One for the process: what it has learned outlives a policy."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[tuple[str, str], _Prompts] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], _Figure] = OrderedDict()
        self._thoughts: OrderedDict[tuple[str, str], _Figure] = OrderedDict()
        self._turn = 0

    def estimate(self, call: Call) -> LearnedEstimate:
        request = call.request
        prompts = request.prompt_count
        text, exact = measure(request, _models_name(call))
        name = (call.principal.key_id, call.model)
        learned = self._prompts.get(name) or self._prompts.get(("", call.model)) or _UNKNOWN
        prompt = exact + (learned.tokens(text) if text else 0)
        least = min(prompt, exact + (_UNKNOWN.tokens(text) if text else 0))
        if not request.generates:
            return LearnedEstimate(prompt, 0, 0, call.model, text, prompts, None, least)
        answers = request.answers
        cap = declared_cap(request.params)
        if cap is not None:
            cap = int(min(cap, _context_left(call, least // prompts))) * answers
        figure = self._answers.get(name) or self._answers.get(("", call.model))
        if figure is None:
            usual, expected, reserved = FIRST_ANSWER, FIRST_EXPECTED * answers, FIRST_ANSWER * answers
        else:
            upper = figure.upper
            usual, expected, reserved = round(upper), round(figure.mean * answers), round(upper * answers)
        if cap is not None:
            expected, reserved = min(expected, cap), cap
        thoughts = self._thoughts.get(name) or self._thoughts.get(("", call.model))
        return LearnedEstimate(
            *(prompt, max(1, expected), max(1, reserved), call.model, text, answers, cap, least),
            usual=max(1, usual),
            known=figure is not None,
            thoughts=0 if thoughts is None else round(thoughts.upper * answers),
        )

    def learn(self, call: Call, usage: Usage) -> None:
        """From what the model's server reported of a finished answer; once much is known, from every fourth."""
        estimate = call.estimate
        if not isinstance(estimate, LearnedEstimate) or call.request.api is not None:
            return
        known = self._answers.get((call.principal.key_id, estimate.model))
        if known is not None and known.seen > ENOUGH:
            self._turn += 1
            if self._turn % 4:
                return
        names = ((call.principal.key_id, estimate.model), ("", estimate.model))
        if estimate.text and usage.prompt and _is_text(call.request):
            for name in names:
                _entry(self._prompts, name, _Prompts()).learn(estimate.text, usage.prompt)
        for name in names:
            if usage.completion and (usage.reasoning or name in self._thoughts):
                _entry(self._thoughts, name, _Figure(0.0, 0.0)).add(usage.reasoning / estimate.answers)
        # The length of an answer cut off by its cap is unknown.
        if usage.completion and (estimate.cap is None or usage.completion < estimate.cap):
            each = usage.completion / estimate.answers
            for name in names:
                _entry(self._answers, name, _Figure(0.0, 0.0)).add(each)


def rough_estimate(request: ChatRequest) -> TokenEstimate:
    """Where nothing was learned: what ``request`` needs, by its text and its cap."""
    text, exact = measure(request)
    prompt = exact + (_UNKNOWN.tokens(text) if text else 0)
    if not request.generates:
        return TokenEstimate(prompt, 0, 0)
    cap = declared_cap(request.params)
    each = FIRST_ANSWER if cap is None else cap
    answers = request.answers
    return TokenEstimate(prompt, min(FIRST_EXPECTED, each) * answers, each * answers)


def unseen_tokens(call: Call, estimate: TokenEstimate) -> int:
    """Tokens of an answer that its caller did not wait for, while the provider may have gone on with it.

    What a budget holds for it; else the cap that the caller declared, or what is usual, and no less than for
    an unknown answer.
    """
    request = call.request
    if not request.generates:
        return 0
    if call.allowance is not None and (held := call.allowance.most(call)) is not None:
        return held
    if isinstance(estimate, LearnedEstimate):
        answers, cap = estimate.answers, estimate.cap
    else:
        answers, each = request.answers, declared_cap(request.params)
        cap = None if each is None else each * answers
    most = max(estimate.reserved, FIRST_ANSWER * answers) if cap is None else cap
    return most if call.cap is None else min(most, call.cap * answers)


def _context_left(call: Call, prompt: int) -> float:
    """Tokens that a prompt leaves of the largest context that its model has: a cap beyond is clipped to that.

    Infinite where contexts are not declared, or nothing is clipped.
    """
    largest, seen = 0, set[str]()
    name = call.policy.resolve(call.model)
    while name is not None and name not in seen:
        seen.add(name)
        model = call.policy.models[name]
        if model.context is None or model.over_context != "clip":
            return math.inf
        largest = max(largest, model.context)
        name = call.policy.resolve(model.larger_context) if model.larger_context is not None else None
    return max(1, largest - prompt) if largest else math.inf


def _models_name(call: Call) -> str:
    """What the provider calls the first model that may be asked."""
    found = call.policy.models.get(call.policy.resolve(call.model) or call.model)
    return found.targets[0].model if found is not None and found.targets else call.model


def declared_cap(params: Mapping[str, Json]) -> int | None:
    """The largest of the caps on one answer that the caller declared."""
    largest = 0
    for name in ("max_tokens", "max_completion_tokens"):
        cap = params.get(name)
        if type(cap) is int and cap > largest:
            largest = cap
    return largest or None


def measure(request: ChatRequest, model: str = "") -> tuple[float, int]:
    """The tokens of the prompts' text at ``CHARACTERS_PER_TOKEN``, and those that are known otherwise: given as token
    ids, or of media, by the rule of ``model``, as its provider calls it.
    """
    if request.messages is not None:
        text, media = 3.0, _Media(model)
        for message in request.messages:
            text += _message(message, media)
        for name in ("tools", "functions", "response_format"):
            if given := request.params.get(name):
                text += _json(given)
        return text, math.ceil(media.tokens)
    given = request.prompt
    prompts = given if isinstance(given, list) else [given] if isinstance(given, str) else []
    if prompts and isinstance(prompts[0], int):
        return 0.0, len(prompts)
    texts = [one for one in prompts if isinstance(one, str)]
    if request.api == "rerank":
        # A model reads the query beside each document.
        documents = request.params.get("documents") or ()
        return _json(documents) + len(documents) * sum(map(_text, texts)), 0
    return sum(_text(one) + 1 for one in texts), sum(len(one) for one in prompts if not isinstance(one, str))


def _is_text(request: ChatRequest) -> bool:
    """The tokens of images and files are unknown, so nothing is learned about text."""
    contents = (message.get("content") for message in request.messages or ())
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)


class _Media:
    """Those of one request: what they come to has nothing to do with a tokenizer."""

    __slots__ = ("_model", "_reader", "tokens")

    def __init__(self, model: str) -> None:
        self._model, self._reader = model, MediaReader()
        self.tokens = 0.0

    def add(self, part: Mapping[str, Json]) -> None:
        self.tokens += self._reader.usual(part, self._model)


def _message(message: Mapping[str, Json], media: _Media) -> float:
    tokens = float(MESSAGE_OVERHEAD)
    content = message.get("content")
    if type(content) is str and len(message) == 2 and "role" in message:  # nearly all of them
        return tokens + _text(content)
    if isinstance(content, str):
        tokens += _text(content)
    elif isinstance(content, list):
        for part in content:
            tokens += _part(part, media)
    for name in ("name", "tool_calls", "function_call", "refusal", "reasoning_content"):
        if given := message.get(name):
            tokens += _text(given) if isinstance(given, str) else _json(given)
    return tokens


def _part(part: Json, media: _Media) -> float:
    if not isinstance(part, dict):
        return 0.0
    text = part.get("text")
    if isinstance(text, str):
        return _text(text)
    if kind_of(part) is None:
        return _json(part)
    media.add(part)
    return 0.0


def _text(text: str) -> float:
    if text.isascii():
        return len(text) / CHARACTERS_PER_TOKEN
    # A character of two bytes and more is about a token of its own in scripts without spaces, less in others.
    more = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return len(text) / CHARACTERS_PER_TOKEN + more / 2


def _json(value: Json) -> float:
    return len(orjson.dumps(value)) / CHARACTERS_PER_TOKEN


def _entry(entries: OrderedDict[Name, Figure], name: Name, new: Figure) -> Figure:
    entry = entries.setdefault(name, new)
    entries.move_to_end(name)
    if len(entries) > MOST_REMEMBERED:
        entries.popitem(last=False)
    return entry


_UNKNOWN = _Prompts()
