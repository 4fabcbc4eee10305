"""How many tokens a request will need, without a tokenizer: from its text, and from what earlier answers reported.

Estimates lean to the high side, as a reservation must cover what is really used.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gateway.media import kind_of
from gateway.metering.media_tokens import MediaReader
from gateway.types import Call, ChatRequest, Json, TokenEstimate, Usage

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
MOST_FACTOR = 4 * CHARACTERS_PER_TOKEN
"""A tokenizer makes at most as many tokens of a text as it has bytes, and a character has four at most."""
MOST_ADDED = 4_096
"""Tokens that a template, and what a provider adds of its own, may put around a prompt. What a server counts beyond
these two lay not in the text that was measured, and says nothing of another caller's."""


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
    declared: int | None = None
    """The declared cap on one answer."""
    textual: bool = True
    """Nothing but text is in the prompt: of images and files the tokens are unknown, and teach nothing about text."""

    def hold(self, prompt: int, reserved: int) -> None:
        """Of the limits so much is held: no more is to be expected, whatever an answer's thoughts may come to."""
        self.prompt, self.reserved, self.thoughts = prompt, reserved, 0
        if self.expected > reserved:
            self.expected = max(1, reserved)


class _Figure:
    """A mean that forgets, and its mean deviation, begun as TCP's round-trip time is (RFC 6298)."""

    __slots__ = ("begin", "deviation", "fall", "mean", "rise", "seen", "upper")

    def __init__(
        self, mean: float = 0.0, *, rise: float = 0.125, fall: float = 0.125, begin: float = 0.5
    ) -> None:
        """``begin``: the deviation that is taken to be the first value's, of itself."""
        self.mean = self.upper = mean
        """And what values seldom go beyond."""
        self.deviation = 0.0
        self.seen = 0
        self.rise, self.fall, self.begin = rise, fall, begin

    def add(self, value: float) -> None:
        if not self.seen:
            self.mean, self.deviation = value, value * self.begin
        elif (error := value - self.mean) > 0:
            self.deviation += 0.125 * (error - self.deviation)
            self.mean += self.rise * error
        else:
            self.deviation -= 0.125 * (error + self.deviation)
            self.mean += self.fall * error
        self.upper = self.mean + 2 * self.deviation
        self.seen += 1


class _Experience:
    """What was learned of a model, for one key or for all: a factor on the text of its prompts, a fixed part that its
    chat template adds, and the lengths of answers and of their thoughts."""

    __slots__ = ("answers", "factor", "fixed", "thoughts")

    def __init__(self) -> None:
        # Of a prompt: rising fast and falling slowly keeps the estimate above the middle.
        self.factor = _Figure(FIRST_FACTOR, rise=0.3, fall=0.05, begin=0.1)
        self.fixed = _Figure(rise=0.3, fall=0.05)
        self.answers = _Figure()
        self.thoughts = _Figure()

    def tokens(self, text: float) -> int:
        return 1 + int(text * self.factor.upper + self.fixed.upper)

    def learn_prompt(self, text: float, tokens: int) -> None:
        # A long prompt trains the factor, a short one the fixed part.
        factor, fixed = self.factor, self.fixed
        if tokens > (most := MOST_ADDED + int(text * MOST_FACTOR)):
            tokens = most
        if text >= SHORT:
            factor.add(min(max(0.05, (tokens - fixed.mean) / text), MOST_FACTOR))
        elif (over := tokens - text * factor.mean) > 0:
            fixed.add(min(over, MOST_ADDED))
        else:
            # No more than the estimate for the text alone: where none is long, short prompts train the factor.
            factor.add(max(0.05, tokens / text))
            if fixed.seen:
                fixed.add(0.0)

    def learn_answer(self, length: float | None, thoughts: float) -> None:
        """Of one answer; None where its length is unknown."""
        if thoughts or self.thoughts.seen:
            self.thoughts.add(thoughts)
        if length is not None:
            self.answers.add(length)


ENOUGH = 32
"""Answers of one kind after which another teaches little: of the first nothing is left in a mean by then."""


class Estimator:
    """One for the process: what it has learned outlives a policy."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Experience] = OrderedDict()
        """By key and model, and by the model alone."""
        self._turn = 0

    def estimate(self, call: Call) -> LearnedEstimate:
        request, model, known = call.request, call.model, self._known
        text, exact, textual = measure(request, call)
        general = known.get(("", model), _UNKNOWN)
        own = known.get((call.principal.key_id, model), general)
        prompt = least = exact
        if text:
            # Both parts of what is known of prompts are learned at once.
            prompt += (own if own.factor.seen or own.fixed.seen else general).tokens(text)
            if (least := exact + 1 + int(text * FIRST_FACTOR)) > prompt:
                least = prompt
        if not request.generates:
            return LearnedEstimate(
                prompt, 0, 0, model, text, request.prompt_count, None, least, textual=textual
            )
        answers = request.answers
        figure = own.answers if own.answers.seen else general.answers
        if figure.seen:
            usual, expected = round(figure.upper) or 1, round(figure.mean * answers) or 1
        else:
            usual, expected = FIRST_ANSWER, FIRST_EXPECTED * answers
        reserved = usual * answers
        cap = declared = declared_cap(request.params) if request.params else None
        if declared is not None:
            cap = int(min(declared, _context_left(call, least // request.prompt_count))) * answers
            expected, reserved = min(expected, cap) or 1, cap or 1
        thoughts = own.thoughts if own.thoughts.seen else general.thoughts
        return LearnedEstimate(
            *(prompt, expected, reserved, model, text, answers, cap, least, usual, figure.seen > 0),
            *(round(thoughts.upper * answers) if thoughts.seen else 0, declared, textual),
        )

    def learn(self, call: Call, usage: Usage) -> None:
        """From what the model's server reported of a finished answer; once much is known, from every fourth of those
        for which an estimate was made."""
        key, request = call.principal.key_id, call.request
        if request.api is not None:
            return
        known = self._known.get((key, call.model))
        if known is not None and known.answers.seen > ENOUGH:
            if call.estimate is None:
                return
            self._turn += 1
            if self._turn % 4:
                return
        estimate = call.estimated()
        if not isinstance(estimate, LearnedEstimate):
            return
        model = estimate.model
        completion, cap, answers = usage.completion, estimate.cap, estimate.answers
        of_prompt = estimate.text and usage.prompt and estimate.textual
        if not (of_prompt or completion):
            return
        # The length of an answer cut off by its cap is unknown.
        length = completion / answers if completion and (cap is None or completion < cap) else None
        for one in (self._of(key, model), self._of("", model)):
            if of_prompt:
                one.learn_prompt(estimate.text, usage.prompt)
            if completion:
                one.learn_answer(length, usage.reasoning / answers)

    def _of(self, key: str, model: str) -> _Experience:
        known, name = self._known, (key, model)
        found = known.get(name)
        if found is None:
            found = known[name] = _Experience()
            if len(known) > MOST_REMEMBERED:
                known.popitem(last=False)
        else:
            known.move_to_end(name)
        return found


def rough_estimate(request: ChatRequest) -> TokenEstimate:
    """Where nothing was learned: what ``request`` needs, by its text and its cap."""
    text, exact, _ = measure(request)
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


def _models_name(call: Call | None) -> str:
    """What the provider calls the first model that may be asked."""
    if call is None:
        return ""
    found = call.policy.models.get(call.policy.resolve(call.model) or call.model)
    return found.targets[0].model if found is not None and found.targets else call.model


def declared_cap(params: Mapping[str, Json]) -> int | None:
    """The largest of the caps on one answer that the caller declared."""
    if not params:
        return None
    largest = 0
    for name in ("max_tokens", "max_completion_tokens"):
        cap = params.get(name)
        if type(cap) is int and cap > largest:
            largest = cap
    return largest or None


def measure(request: ChatRequest, call: Call | None = None) -> tuple[float, int, bool]:
    """The tokens of the prompts' text at ``CHARACTERS_PER_TOKEN``; those that are known otherwise: given as token ids,
    or of media, by the rule of the model that ``call`` may be sent to first; and whether all messages are text.
    """
    if request.messages is not None:
        text, media, params = 3.0, None, request.params
        for message in request.messages:
            content = message.get("content")
            if type(content) is str and len(message) == 2 and "role" in message:  # nearly all of them
                text += MESSAGE_OVERHEAD + _text(content)
            else:
                media = media or _Media(call)
                text += _message(message, media)
        if params:
            for name in ("tools", "functions", "response_format"):
                if given := params.get(name):
                    text += _json(given)
        return (text, 0, True) if media is None else (text, math.ceil(media.tokens), media.textual)
    given = request.prompt
    prompts = given if isinstance(given, list) else [given] if isinstance(given, str) else []
    if prompts and isinstance(prompts[0], int):
        return 0.0, len(prompts), True
    texts = [one for one in prompts if isinstance(one, str)]
    if request.api == "rerank":
        # A model reads the query beside each document.
        documents = request.params.get("documents") or ()
        return _json(documents) + len(documents) * sum(map(_text, texts)), 0, True
    if request.api == "score":
        others = request.params.get("text_2") or ()
        count = 1 if isinstance(others, str) else len(others)
        return _json(others) + (count if len(texts) == 1 else 1) * sum(map(_text, texts)), 0, True
    counted = sum(len(one) for one in prompts if not isinstance(one, str))
    return sum(_text(one) + 1 for one in texts), counted, True


class _Media:
    """Those of one request: what they come to has nothing to do with a tokenizer."""

    __slots__ = ("_model", "_reader", "textual", "tokens")

    def __init__(self, call: Call | None) -> None:
        self._model, self._reader = _models_name(call), MediaReader()
        self.tokens = 0.0
        self.textual = True

    def add(self, part: Mapping[str, Json]) -> None:
        self.tokens += self._reader.usual(part, self._model)


def _message(message: Mapping[str, Json], media: _Media) -> float:
    tokens = float(MESSAGE_OVERHEAD)
    content = message.get("content")
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
        media.textual = False
        return 0.0
    text = part.get("text")
    if isinstance(text, str):
        return _text(text)
    media.textual = False
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


_UNKNOWN = _Experience()
