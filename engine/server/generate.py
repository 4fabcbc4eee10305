"""From token ids to pieces of text: one HTTP request's sequences, detokenized and cut at stop strings."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from engine.client import Delta, EngineClient
from engine.core.request import FinishReason
from engine.core.sampling_params import SamplingParams
from engine.server.answers import Usage
from engine.server.detokenizer import Detokenizer, StopStrings
from engine.server.metrics import Metrics
from engine.server.tokenizer import Tokenizer


@dataclass(slots=True)
class Sequence:
    """One choice to generate."""

    prompt: list[int]
    params: SamplingParams
    echo: str = ""
    """Text to send before what is generated."""


@dataclass(slots=True)
class Piece:
    index: int
    text: str
    finish: FinishReason | None


@dataclass(slots=True)
class Generator:
    client: EngineClient
    tokenizer: Tokenizer
    metrics: Metrics

    async def run(
        self, sequences: list[Sequence], stops: list[str], usage: Usage, arrived: float
    ) -> AsyncGenerator[list[Piece], None]:
        """Yields what has come, as it comes; ``usage`` counts along.

        Whatever ends the iteration early also ends the work in the engine. Raises ``EngineError``.
        """
        generation = self.client.submit([(s.prompt, s.params) for s in sequences])
        choices = [_Choice(self.tokenizer, stops, arrived, self.metrics) for _ in sequences]
        try:
            async for deltas in generation:
                pieces = []
                for delta in deltas:
                    choice = choices[delta.index]
                    if choice.finished:
                        continue
                    first = choice.tokens == 0
                    counted = choice.tokens
                    text, finish = choice.take(delta)
                    usage.completion_tokens += choice.tokens - counted
                    if choice.finished and delta.finish is None:
                        generation.stop(delta.index)
                    if first:
                        text = sequences[delta.index].echo + text
                    if text or finish or first:
                        pieces.append(Piece(delta.index, text, finish))
                if pieces:
                    yield pieces
        finally:
            generation.close()
            self.metrics.generated_tokens.inc(usage.completion_tokens)


@dataclass(slots=True)
class _Choice:
    tokenizer: Tokenizer
    stops: list[str]
    last: float
    """When its last token came, or else when the request did."""
    metrics: Metrics
    tokens: int = 0
    finished: bool = False
    _detokenizer: Detokenizer = field(init=False)
    _stop_strings: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        self._detokenizer = Detokenizer(self.tokenizer.decode)
        self._stop_strings = StopStrings(self.stops)

    def take(self, delta: Delta) -> tuple[str, FinishReason | None]:
        self._time(delta)
        # The token that ended the answer is no part of its text.
        spoken = delta.tokens[:-1] if delta.finish == "stop" else delta.tokens
        if not self.stops:
            self.tokens += len(delta.tokens)
            text = self._detokenizer.push(spoken) if spoken else ""
        else:
            text = ""
            # One by one: what comes after a stop string must not be counted.
            for token in spoken:
                self.tokens += 1
                text += self._stop_strings.push(self._detokenizer.push([token]))
                if self._stop_strings.hit:
                    self.finished = True
                    return text, "stop"
            self.tokens += len(delta.tokens) - len(spoken)
        if delta.finish is None:
            return text, None
        self.finished = True
        text += self._stop_strings.push(self._detokenizer.finish())
        if self._stop_strings.hit:
            return text, "stop"
        return text + self._stop_strings.finish(), delta.finish

    def _time(self, delta: Delta) -> None:
        gap = delta.at - self.last
        self.last = delta.at
        if self.tokens == 0:
            self.metrics.ttft.observe(gap)
        else:
            for _ in delta.tokens:
                self.metrics.itl.observe(gap / len(delta.tokens))
