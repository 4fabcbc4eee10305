"""One request, asked of a row of models, the cheapest first, until an answer is good enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from gateway.cascade.confidence import judge as judge_answer
from gateway.cascade.held import LOGPROBS, Held, asks_logprobs, with_logprobs
from gateway.errors import (
    BadRequest,
    ContextTooLong,
    Forbidden,
    GatewayError,
    Overloaded,
    RateLimited,
    UnknownModel,
    Upstream,
)
from gateway.policy.schema import Step
from gateway.types import Call, ChatRequest, Chunk, Chunks, Handler

FAILURES = (Upstream, RateLimited, Overloaded, ContextTooLong, UnknownModel)
"""What one model could not do and the next may: it failed, is rate limited or full, is too short for the request, or is
disabled."""


class Judge(Protocol):
    """Tells beforehand how hard a request is."""

    async def complexity(self, request: ChatRequest) -> float:
        """0 to 1: the share of training traffic that looks easier for a small model than ``request``."""
        ...


async def ask(call: Call, steps: tuple[Step, ...], judge: Judge, following: Handler) -> Chunks:
    """The answer of exactly one of ``steps``: the first that is good enough, or else the last one's.

    Every answer but the last one's is held back until it has been judged; a client that streams gets it at once
    then. Where the last step cannot answer, an answer that its model was not sure of is better than none; one that
    declines, or lacks the form that was asked for, is no answer. Raises what the deciding step raised.
    """
    if call.request.embeds:
        raise BadRequest(
            f"The model '{call.model}' is a cascade, which chooses between answers, and the vectors of different "
            "models have nothing to do with each other. Name a model with targets.",
            param="model",
            code="unsupported_parameter",
        )
    first, complexity = await _start(call, steps, judge)
    told: list[dict[str, Any]] = []
    spare: _Attempt | None = None
    call.receipt.note("cascade", complexity=complexity, steps=told, answered=None)
    for step in steps[first:-1]:
        attempt = _Attempt(call, step)
        told.append(attempt.facts)
        async with aclosing(following(attempt.call)) as chunks:
            try:
                async for chunk in chunks:
                    if chunk.comment is not None:
                        yield chunk
                    elif not attempt.held.add(chunk):
                        attempt.accept("too_long")
                        break
                else:
                    attempt.judge()
            except GatewayError as error:
                failed = _is_its_own(error)
                attempt.facts.update(verdict="failed" if failed else "error", error=error.code)
                if not failed:
                    raise
            finally:
                call.candidate = attempt.call.candidate
            if attempt.accepted:
                for chunk in attempt.released():
                    yield chunk
                # What there is of it beyond the bound goes straight on.
                try:
                    async for chunk in chunks:
                        call.candidate = attempt.call.candidate
                        yield attempt.shown(chunk)
                finally:
                    _note_answered(call, attempt.call)  # another may have gone on with it
                return
        attempt.discard()
        if attempt.facts["verdict"] == "low_logprob":
            spare = attempt
    last = replace(call, model=steps[-1].model, candidates=(), candidate=None)
    told.append({"model": last.model, "verdict": "last", "mean_logprob": None})
    begun = False
    try:
        async with aclosing(following(last)) as chunks:
            async for chunk in chunks:
                call.candidate = last.candidate
                begun = begun or chunk.comment is None
                yield chunk
        return
    except GatewayError as error:
        if begun or spare is None or not _is_its_own(error):
            raise
        told[-1].update(verdict="failed", error=error.code)
    finally:
        call.candidate = last.candidate
        if begun:
            _note_answered(call, last)
    call.candidate = spare.call.candidate
    spare.answers()
    for chunk in spare.released():
        yield chunk


async def _start(call: Call, steps: tuple[Step, ...], judge: Judge) -> tuple[int, float | None]:
    """The first step whose condition holds, and the complexity, where a condition asked for it."""
    complexity: float | None = None
    for index, step in enumerate(steps[:-1]):
        if step.when is None:
            return index, complexity
        if complexity is None:
            complexity = round(await judge.complexity(call.request), 3)
        if complexity < step.when.complexity.below:
            return index, complexity
    return len(steps) - 1, complexity


def _is_its_own(error: GatewayError) -> bool:
    """Whether the failure is one model's, and says nothing of the others."""
    if isinstance(error, Forbidden):
        return error.code == "local_only"
    if isinstance(error, BadRequest) and (error.status == 404 or error.code == "unsupported_parameter"):
        return True
    return isinstance(error, FAILURES)


def _note_answered(caller: Call, asked: Call) -> None:
    """The model whose answer it is: the step's own, or the fallback that answered in its place."""
    caller.receipt.note("cascade", answered=asked.candidate.model if asked.candidate else asked.model)


class _Attempt:
    """One step that was asked, and what became of it."""

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
            wishes=LOGPROBS if self._hides_logprobs else caller.wishes,
            model=step.model,
            candidates=(),
            candidate=None,
            purpose="step" if caller.purpose == "answer" else caller.purpose,
        )
        self._began = len(caller.upstream_usage)
        self._ended: int | None = None
        self.held = Held()
        self.facts: dict[str, Any] = {"model": step.model, "verdict": None, "mean_logprob": None}
        """For the receipt."""
        self.accepted = False

    def judge(self) -> None:
        verdict = judge_answer(self.held.chunks, self._caller.request, self._step.escalate)
        mean = verdict.mean_logprob
        self.facts.update(verdict=verdict.reason, mean_logprob=mean if mean is None else round(mean, 4))
        if verdict.good:
            self.accept(verdict.reason)

    def accept(self, why: str) -> None:
        """From here on this step's answer is the answer."""
        self.accepted = True
        self.facts["verdict"] = why
        self.answers()

    def discard(self) -> None:
        """Another step is asked."""
        self._ended = len(self._caller.upstream_usage)

    def answers(self) -> None:
        """What it spent, it spent on the answer."""
        _note_answered(self._caller, self.call)
        self.call.purpose = self._caller.purpose
        spent = self._caller.upstream_usage
        for i, one in enumerate(spent[self._began : self._ended], self._began):
            if one.purpose == "step":
                spent[i] = replace(one, purpose=self._caller.purpose)

    def released(self) -> Iterator[Chunk]:
        return map(self.shown, self.held.chunks)

    def shown(self, chunk: Chunk) -> Chunk:
        """``chunk`` as the caller sees it: without the log-probabilities that only the cascade wanted."""
        if self._hides_logprobs:
            chunk.logprobs = None
        return chunk
