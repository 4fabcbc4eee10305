"""One request, sent to a list of models, the cheapest first, until an answer is good enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

import orjson

from gateway.cascade.confidence import assess
from gateway.errors import (
    BadRequest,
    ContextTooLong,
    Forbidden,
    GatewayError,
    Overloaded,
    RateLimited,
    Upstream,
)
from gateway.policy.schema import Step
from gateway.types import Call, ChatRequest, Chunk, Chunks, Handler

FAILURES = (Upstream, RateLimited, Overloaded, ContextTooLong)
"""Failures that the next model may not have: an upstream error, a model out of use, a rate limit, a full queue,
too short a context."""
MAX_BYTES = 256 * 2**10
"""Of the answer, as JSON. A longer one is no refusal, and is passed on unchecked."""


class ComplexityScorer(Protocol):
    """Predicts how hard a request is."""

    async def complexity(self, request: ChatRequest) -> float:
        """0 to 1: the share of training traffic that looks easier for a small model than ``request``."""
        ...


async def run_cascade(
    call: Call, steps: tuple[Step, ...], scorer: ComplexityScorer, following: Handler
) -> Chunks:
    """The answer of exactly one of ``steps``: the first that is good enough, or else the last one's.

    Every answer but the last step's is buffered until it has been assessed. Where the last step fails, an answer of low
    confidence is given after all; a refusal, or one of the wrong form, is not. Raises what the deciding step raised.
    """
    if call.request.embeds:
        raise BadRequest(
            f"The model '{call.model}' is a cascade, which chooses between answers, and the vectors of different "
            "models have nothing to do with each other. Name a model with targets.",
            param="model",
            code="unsupported_parameter",
        )
    if call.request.api is not None:
        raise BadRequest(
            f"The model '{call.model}' is a cascade, which chooses between answers in text. Name a model with targets.",
            param="model",
            code="unsupported_parameter",
        )
    first, complexity = await _start(call, steps, scorer)
    notes: list[dict[str, Any]] = []
    runner_up: _StepAttempt | None = None
    call.receipt.note("cascade", complexity=complexity, steps=notes, answered=None)
    for step in steps[first:-1]:
        attempt = _StepAttempt(call, step)
        notes.append(attempt.facts)
        async with aclosing(following(attempt.call)) as chunks:
            try:
                async for chunk in chunks:
                    if chunk.comment is not None:
                        yield chunk
                    elif not attempt.answer.add(chunk):
                        attempt.accept("too_long")
                        break
                else:
                    attempt.judge()
            except GatewayError as error:
                failed = _is_the_models_own(error)
                attempt.facts.update(verdict="failed" if failed else "error", error=error.code)
                if not failed:
                    raise
            finally:
                call.candidate = attempt.call.candidate
                if not attempt.accepted:
                    attempt.call.discard = None  # which would hold the call, and the call it
            if attempt.accepted:
                try:
                    for chunk in attempt.visible_chunks():
                        yield chunk
                    # What is beyond the buffer's limit is passed on as it comes.
                    async for chunk in chunks:
                        call.candidate = attempt.call.candidate
                        yield attempt.visible(chunk)
                finally:
                    attempt.call.discard = None
                    _note_answered(call, attempt.call)  # another may have continued it
                return
        attempt.discard()
        if attempt.facts["verdict"] == "low_logprob":
            runner_up = attempt
    last = replace(call, model=steps[-1].model, candidates=(), candidate=None)
    notes.append({"model": last.model, "verdict": "last", "mean_logprob": None})
    begun = False

    def forget() -> None:
        nonlocal begun
        begun = False

    last.discard = call.discard
    last.on_discard(forget)
    try:
        async with aclosing(following(last)) as chunks:
            async for chunk in chunks:
                call.candidate = last.candidate
                begun = begun or chunk.comment is None
                yield chunk
        return
    except GatewayError as error:
        if begun or runner_up is None or not _is_the_models_own(error):
            raise
        notes[-1].update(verdict="failed", error=error.code)
    finally:
        call.candidate = last.candidate
        if begun:
            _note_answered(call, last)
    call.candidate = runner_up.call.candidate
    runner_up.becomes_answer()
    for chunk in runner_up.visible_chunks():
        yield chunk


async def _start(call: Call, steps: tuple[Step, ...], scorer: ComplexityScorer) -> tuple[int, float | None]:
    """The first step whose condition holds, and the complexity, where a condition asked for it."""
    complexity: float | None = None
    for index, step in enumerate(steps[:-1]):
        if step.when is None:
            return index, complexity
        if complexity is None:
            complexity = round(await scorer.complexity(call.request), 3)
        if complexity < step.when.complexity.below:
            return index, complexity
    return len(steps) - 1, complexity


def _is_the_models_own(error: GatewayError) -> bool:
    """Whether the failure is one model's, and the next may succeed."""
    if isinstance(error, Forbidden):
        return error.code in ("local_only", "residency")
    if isinstance(error, BadRequest) and error.may_suit_another:
        return True
    return isinstance(error, FAILURES)


def _note_answered(caller: Call, asked: Call) -> None:
    """The model whose answer it is: the step's own, or the fallback that answered in its place."""
    caller.receipt.note("cascade", answered=asked.candidate.model if asked.candidate else asked.model)


class _StepAttempt:
    """One step of the cascade that was tried."""

    def __init__(self, caller: Call, step: Step) -> None:
        self._caller = caller
        self._step = step
        self._hides_logprobs = step.escalate.mean_logprob_below is not None and not asks_logprobs(
            caller.request
        )
        request = with_logprobs(caller.request) if self._hides_logprobs else caller.request
        self.call = replace(
            caller,
            request=request,
            optional_params=LOGPROBS if self._hides_logprobs else caller.optional_params,
            model=step.model,
            candidates=(),
            candidate=None,
            purpose="step" if caller.purpose == "answer" else caller.purpose,
        )
        self.call.discard = self._forget
        self._began = len(caller.upstream_usage)
        self._ended: int | None = None
        self.answer = AnswerBuffer()
        self.facts: dict[str, Any] = {"model": step.model, "verdict": None, "mean_logprob": None}
        """For the receipt."""
        self.accepted = False

    def judge(self) -> None:
        assessment = assess(self.answer.chunks, self._caller.request, self._step.escalate)
        mean = assessment.mean_logprob
        self.facts.update(verdict=assessment.reason, mean_logprob=mean if mean is None else round(mean, 4))
        if assessment.good:
            self.accept(assessment.reason)

    def accept(self, why: str) -> None:
        """This step's answer is the answer."""
        self.accepted = True
        self.facts["verdict"] = why
        self.becomes_answer()

    def discard(self) -> None:
        """Another step is tried."""
        self._ended = len(self._caller.upstream_usage)

    def becomes_answer(self) -> None:
        """Account for what it used as the answer, not as a step."""
        _note_answered(self._caller, self.call)
        self.call.purpose = self._caller.purpose
        spent = self._caller.upstream_usage
        for i, one in enumerate(spent[self._began : self._ended], self._began):
            if one.purpose == "step":
                spent[i] = replace(one, purpose=self._caller.purpose)

    def _forget(self) -> bool:
        """For ``Call.discard``: what is buffered; what was too long for that, if it is held back further out."""
        if self.accepted:
            return self._caller.discard is not None and self._caller.discard()
        self.answer = AnswerBuffer()
        return True

    def visible_chunks(self) -> Iterator[Chunk]:
        return map(self.visible, self.answer.chunks)

    def visible(self, chunk: Chunk) -> Chunk:
        """``chunk`` as the caller gets it: without log-probabilities that only the cascade asked for."""
        if self._hides_logprobs:
            chunk.logprobs = None
        return chunk


class AnswerBuffer:
    """The chunks of one step's answer, in order, until it is known whether it is good enough."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._bytes = 0

    def add(self, chunk: Chunk) -> bool:
        """Whether the buffer may grow."""
        self.chunks.append(chunk)
        self._bytes += len(orjson.dumps((chunk.delta, chunk.logprobs)))
        return self._bytes <= MAX_BYTES


def asks_logprobs(request: ChatRequest) -> bool:
    """Whether the caller wants to see log-probabilities."""
    value = request.params.get("logprobs")
    # Completions take a number of alternatives, where 0 means the chosen tokens alone.
    return value is not None and value is not False


LOGPROBS = frozenset({"logprobs"})


def with_logprobs(request: ChatRequest) -> ChatRequest:
    """``request``, asking for the log-probability of each token of the answer: ``LOGPROBS`` is all that is added."""
    wanted: Mapping[str, Any] = {"logprobs": True if request.messages is not None else 1}
    return replace(request, params={**request.params, **wanted})
