"""From token ids to text: one HTTP request's sequences, detokenized and cut at stop strings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat

from engine.client import EngineClient
from engine.core.request import FinishReason
from engine.core.sampling_params import SamplingParams
from engine.generation import Delta
from engine.server.detokenizer import Detokenizer, StopStrings
from engine.server.hints import Hints
from engine.server.logprobs import DecodedLogprobs, LogprobBuffer, decoded_prompt_logprobs, shifted
from engine.server.metrics import EngineMetrics
from engine.server.reasoning import ReasoningSplit
from engine.server.responses import ChoiceDelta, Finish, Usage
from engine.server.tokenizer import Tokenizer
from engine.server.tools_parser import CallDelta, ToolParser
from engine.server.vllm_metrics import RequestTimeline, VllmMetrics


@dataclass(slots=True)
class ChoiceRequest:
    """One choice to generate."""

    prompt: list[int]
    params: SamplingParams
    context: list[int] = field(default_factory=list)
    """The end of the prompt, where what is generated is more of the same text."""
    echo: str = ""
    """Text to send before what is generated."""
    silent: bool = False
    """Only the echo is requested: the one token that is sampled is left out."""
    parser: ToolParser | None = None
    """Takes tool calls out of the text."""
    own_stops: frozenset[int] = frozenset()
    """Those of ``params.stop_token_ids`` that the caller named."""
    spared: int = 0
    """First tokens in whose text no stop string is looked for, as in vLLM: ``min_tokens`` of the request."""
    reasoning: ReasoningSplit | None = None
    """Takes the reasoning out of the text, before stop strings are looked for and calls are parsed."""
    hides_reasoning: bool = False
    """It is counted, and not sent."""
    shown: Mapping[int, str] = field(default_factory=dict)
    """What the tokens that mark reasoning are decoded as."""


@dataclass(slots=True)
class Generator:
    client: EngineClient
    tokenizer: Tokenizer
    metrics: EngineMetrics
    vllm: VllmMetrics

    async def run(
        self,
        sequences: list[ChoiceRequest],
        stops: list[str],
        usage: Usage,
        arrived: float,
        hints: Hints,
        adapter: str | None = None,
        salt: bytes = b"",
        shared: int = 0,
        timelines: list[RequestTimeline] | None = None,
        *,
        pin: float = 0.0,
    ) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Yields what has come, as it comes, and counts it in ``usage``. ``salt`` to ``pin``: as in ``submit``.

        The sequences' timelines are added to ``timelines``.

        Ending the iteration early aborts the sequences. Raises ``EngineError``.
        """
        generation = self.client.submit(
            [(s.prompt, s.params) for s in sequences],
            priority=hints.priority,
            weight=hints.weight,
            deadline=hints.deadline,
            adapter=adapter,
            tenant=hints.tenant,
            salt=salt,
            shared=shared,
            pin=pin,
            prefill_at=hints.prefill_at,
        )
        choices = [
            _ChoiceStream(
                self.tokenizer,
                s,
                stops,
                arrived,
                self.metrics,
                RequestTimeline(arrived, generation.submitted),
            )
            for s in sequences
        ]
        if timelines is not None:
            timelines.extend(choice.timeline for choice in choices)
        aborted = True
        prompts: dict[int, list[DecodedLogprobs]] = {}
        """Prompt logprobs by the prompt's identity: choices of one prompt share them."""
        try:
            async for deltas in generation:
                pieces = []
                for delta in deltas:
                    choice = choices[delta.index]
                    if choice.finished:
                        continue
                    first = choice.tokens == 0
                    counted, thought_before = choice.tokens, choice.thought_tokens
                    sequence = sequences[delta.index]
                    self.vllm.tokens(choice.timeline, delta, len(sequence.prompt))
                    thought, text, finish, logprobs, calls = choice.take(delta)
                    if finish is not None:
                        self.vllm.finish(choice.timeline, finish, len(sequence.prompt))
                    if sequence.hides_reasoning:
                        thought, logprobs = "", logprobs and [one for one in logprobs if one.offset >= 0]
                    if sequence.silent:
                        text, logprobs, choice.tokens = "", logprobs and [], counted
                    usage.completion_tokens += choice.tokens - counted
                    usage.cached_tokens += delta.cached
                    if sequence.reasoning is not None:
                        usage.reasoning_tokens = (
                            (usage.reasoning_tokens or 0) + choice.thought_tokens - thought_before
                        )
                    if choice.finished and delta.finish is None:
                        generation.stop(delta.index)
                    if first and not choice.begun:
                        choice.begun = True
                        if delta.prompt_logprobs is not None:
                            prompts[id(sequence.prompt)] = decoded_prompt_logprobs(
                                self.tokenizer, sequence.prompt, delta.prompt_logprobs
                            )
                        text = sequence.echo + text
                        before = prompts.get(id(sequence.prompt), [])
                    else:
                        before = []
                    if logprobs is not None and sequence.echo:
                        logprobs = before + shifted(logprobs, len(sequence.echo))
                    if text or finish or first or logprobs or calls or thought:
                        pieces.append(
                            ChoiceDelta(delta.index, text, finish, logprobs, calls, choice.stop, thought)
                        )
                if pieces:
                    yield pieces
            self.vllm.finish_group(max(choice.timeline.tokens for choice in choices))
        except Exception:
            aborted = False
            raise
        finally:
            generation.close()
            for choice in choices:
                if not choice.finished:
                    self.vllm.fail(aborted=aborted)
            self.metrics.generated_tokens.inc(usage.completion_tokens)


@dataclass(slots=True)
class _ChoiceStream:
    tokenizer: Tokenizer
    sequence: ChoiceRequest
    stops: list[str]
    last: float
    """When its last token came, before the first when the request did."""
    metrics: EngineMetrics
    timeline: RequestTimeline
    tokens: int = 0
    thought_tokens: int = 0
    """Those of ``tokens`` that are reasoning, its markers not counted."""
    finished: bool = False
    emitted: int = 0
    """Characters of the answer sent."""
    stop: str | int | None = None
    """The caller's stop string or token that ended it."""
    begun: bool = False
    """Whether any of it was sent."""
    _detokenizer: Detokenizer = field(init=False)
    _stop_strings: StopStrings = field(init=False)
    _logprobs: LogprobBuffer | None = field(init=False)

    def __post_init__(self) -> None:
        context = self.sequence.context
        parser = self.sequence.parser
        decode = self.tokenizer.showing(parser.markers if parser else (), self.sequence.shown)
        self._detokenizer = Detokenizer(decode, context)
        self._stop_strings = StopStrings(self.stops)
        asked = self.sequence.params.logprobs is not None
        self._logprobs = LogprobBuffer(self.tokenizer, context) if asked else None

    def take(
        self, delta: Delta
    ) -> tuple[str, str, Finish | None, list[DecodedLogprobs] | None, list[CallDelta]]:
        """(reasoning, text, finish, logprobs, calls)"""
        self._time(delta)
        text, finish = self._read(delta)
        self.finished = finish is not None
        if self._stop_strings.hit:
            self.stop = self._stop_strings.found
        elif delta.finish == "stop" and delta.tokens[-1] in self.sequence.own_stops:
            self.stop = delta.tokens[-1]
        self.emitted += len(text)
        logprobs = None if self._logprobs is None else self._released(self._logprobs, finish)
        split, parser = self.sequence.reasoning, self.sequence.parser
        thought = "" if split is None else split.take()
        if parser is None:
            return thought, text, finish, logprobs, []
        return thought, *self._parse(parser, text, finish, logprobs)

    def _released(self, buffer: LogprobBuffer, finish: FinishReason | None) -> list[DecodedLogprobs]:
        """Offsets count from where the answer begins: those of reasoning are negative."""
        split = self.sequence.reasoning
        start = 0 if split is None else split.begins
        sent = self.emitted + start if start is not None else split.settled if split is not None else 0
        if finish is None:
            logprobs = buffer.release(sent)
        else:
            logprobs = buffer.cut(sent) if self._stop_strings.hit else buffer.finish()
        if start == 0:
            return logprobs
        return [replace(one, offset=-1 if start is None else one.offset - start) for one in logprobs]

    def _parse(
        self,
        parser: ToolParser,
        text: str,
        finish: FinishReason | None,
        logprobs: list[DecodedLogprobs] | None,
    ) -> tuple[str, Finish | None, list[DecodedLogprobs] | None, list[CallDelta]]:
        parsed = parser.push(text)
        text, calls = parsed.text, parsed.calls
        if finish is None and not parser.done:
            return text, None, logprobs, calls
        rest = parser.finish(cut=finish == "length")
        self.finished = True
        ended: Finish = (
            "tool_calls" if parser.complete and (finish == "stop" or parser.done) else finish or "stop"
        )
        return text + rest.text, ended, logprobs, calls + rest.calls

    def _read(self, delta: Delta) -> tuple[str, FinishReason | None]:
        # The stop token is not part of the text.
        visible = delta.tokens[:-1] if delta.finish == "stop" else delta.tokens
        split = self.sequence.reasoning
        if not self.stops and self._logprobs is None and split is None:
            self.tokens += len(delta.tokens)
            text = self._detokenizer.push(visible) if visible else ""
        else:
            text = ""
            # One by one: tokens after a stop string must not be counted.
            for token, logprobs in zip(visible, delta.logprobs or repeat(None), strict=False):
                self.tokens += 1
                certain = self._detokenizer.push([token])
                if self._logprobs is not None and logprobs is not None:
                    self._logprobs.push(logprobs, certain)
                if split is not None:
                    thinking, certain = split.inside, split.push(certain)
                    self.thought_tokens += thinking and split.inside
                text += self._stop_strings.push(certain) if self.tokens > self.sequence.spared else certain
                if self._stop_strings.hit:
                    return text, "stop"
            self.tokens += len(delta.tokens) - len(visible)
        if delta.finish is None:
            return text, None
        rest = self._detokenizer.finish()
        text += self._stop_strings.push(rest if split is None else split.push(rest) + split.finish())
        if self._stop_strings.hit:
            return text, "stop"
        return text + self._stop_strings.finish(), delta.finish

    def _time(self, delta: Delta) -> None:
        gap = delta.at - self.last
        self.last = delta.at
        if self.tokens == 0:
            self.metrics.ttft.observe(gap)
        else:
            self.metrics.itl.observe(gap / len(delta.tokens), len(delta.tokens))
