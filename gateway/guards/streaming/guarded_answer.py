"""An answer under guard: what of it may leave, and when it is to be cut.

Nothing of a text leaves before all guards that hold or keep a window have cleared it; optimistic ones scan beside.
What a client can have seen of something that a guard blocks, counted from its first character:

- ``hold``: nothing;
- ``windowed``: nothing, of whatever is no longer than the window;
- ``optimistic``: itself, at most ``interval`` characters after it, and what arrived while the scan ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.guards.guards import Guard
from gateway.guards.streaming.cut import final_chunks
from gateway.guards.streaming.guarded_choice import LARGE, GuardedChoice, Held, HeldChunk, HeldPieces
from gateway.guards.streaming.scannable import Scannable
from gateway.guards.streaming.scanned_answer import ScannedAnswer
from gateway.guards.streaming.text_stream import TextStream
from gateway.guards.texts.paths import put
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunk, Json, Usage


class GuardedAnswer(ScannedAnswer):
    """Drive it in a loop: ``feed`` what came, ``scan``, pass on what ``release`` yields, until ``cut`` or ``is_done``.
    While nothing ``has_open``, ``look`` does for ``scan``, with nothing to await.
    """

    def __init__(
        self,
        call: Call,
        guards: Sequence[Guard],
        metrics: Metrics,
        wake: Callable[..., None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(call, guards, metrics, wake, clock)
        self.scanned = False
        """To the end, by every guard."""
        self.shown = False
        """Something of it has left."""
        self._passing: list[Chunk] = []
        """Chunks without a delta."""
        self._opening: list[Held] = []
        """What may leave, and comes before all that has content."""
        self._ended = False
        self._scannable = Scannable()
        self._usage: Usage | None = None
        self._envelope: Mapping[str, Json] = {}

    @property
    def is_holding(self) -> bool:
        return any(choice.queue for choice in self._choices.values())

    @property
    def unjudged_by(self) -> Guard | None:
        """It was cut for want of this guard's verdict, before anything of it has left."""
        if self.cut is None or self.cut.reason != "guard_unavailable" or self.shown:
            return None
        return self.cut.guard

    @property
    def is_done(self) -> bool:
        """Nothing is held, and no scan is due or in flight."""
        return not (self._in_flight or self._changed or self.is_holding)

    def feed(self, chunk: Chunk) -> None:
        choice, delta = self._choices.get(chunk.index), chunk.delta
        if (
            choice is None
            or delta is None
            or (stream := choice.current) is None
            or (text := delta.get(stream.channel)).__class__ is not str
            or not text
            or len(text) > LARGE
            or len(delta) > 1
            or chunk.finish_reason is not None
            or (chunk.envelope is not self._envelope and chunk.envelope)
            or chunk.choice
            or chunk.usage is not None
            or chunk.logprobs is not None
            or stream.unescaping is not None
        ):
            self._take_in(chunk)
            return
        # As nearly all are: another piece of the text that grew last, and nothing else that is new.
        self._add(choice, stream, chunk, (text,))

    def feed_pieces(self, like: Chunk, texts: Sequence[str]) -> None:
        """As ``feed``, for the chunks that ``like.with_text`` makes of ``texts``."""
        choice = self._choices.get(like.index)
        stream = None if choice is None else choice.current
        if (
            choice is None
            or stream is None
            or stream.channel not in (like.delta or ())
            or (like.envelope is not self._envelope and like.envelope)
            or like.choice
            or stream.unescaping is not None
            or max(map(len, texts)) > LARGE
        ):
            for text in texts:
                self.feed(like.with_text(text))
            return
        self._add(choice, stream, like, texts)

    def _add(self, choice: GuardedChoice, stream: TextStream, like: Chunk, texts: Sequence[str]) -> None:
        """More of the text that grew last."""
        before = stream.end
        stream.add(texts, self._clock())
        choice.queue.append(HeldPieces(like, stream, texts, stream.end))
        choice.characters += stream.end - before
        if stream.end >= stream.due:
            self._changed[like.index, stream.channel] = stream
        if self._limits:
            self._measure(like.index, choice, stream)

    def finish(self) -> None:
        """The answer is complete."""
        self._ended = True
        for index, choice in self._choices.items():
            self._complete(index, choice)

    def release(self) -> Iterator[Chunk]:
        """What may leave now, in order. What was cut in the meantime stays."""
        return self.released(self.leaving())

    def leaving(self) -> list[Held]:
        """What may leave now, in order, for ``released`` or ``released_texts``; nothing else is taken before that."""
        if self.cut is not None:
            return []
        leaving = self._leaving()
        return leaving if self.shown or not (leaving or self._ended) else self._first_leaving(leaving)

    def released(self, leaving: Sequence[Held]) -> Iterator[Chunk]:
        """Its chunks. What was cut in the meantime stays."""
        each = [one for held in leaving for one in held.each()]
        last = len(each) - 1
        for number, held in enumerate(each):
            if self._in_flight:
                self._collect()
            if self.cut is not None:
                return
            chunk = held.released()
            chunk.more = number < last
            if chunk.delta is not None:
                choice = self._choices[chunk.index]
                choice.begun = True
                if chunk.finish_reason is not None:
                    choice.finished = True
            yield chunk

    def released_texts(self, leaving: Sequence[Held]) -> tuple[Chunk, Sequence[str]] | None:
        """Its texts, and what their chunks are like, where they are pieces of one text; None, and nothing is released,
        where there is more to it."""
        pieces = [held for held in leaving if isinstance(held, HeldPieces)]
        if len(pieces) < len(leaving):
            return None
        first = pieces[0]
        if not all(map(first.goes_with, pieces)):
            return None
        texts = [text for held in pieces for text in held.released_texts()]
        self._choices[first.like.index].begun = True
        return first.like, texts

    def final_chunks(self) -> list[Chunk]:
        """The end of an answer that was cut."""
        cut = self.cut
        if cut is None:
            return []
        open_ = [index for index, choice in self._choices.items() if not choice.finished]
        opening = [] if self.shown else [one.chunk for one in self._opening if isinstance(one, HeldChunk)]
        for chunk in opening:
            chunk.more = True
        begun = self._choices[cut.choice].begun or any(chunk.index == cut.choice for chunk in opening)
        return opening + final_chunks(
            cut, self._call.request_id, open_, self._envelope, self._usage, begun=begun
        )

    def note(self) -> None:
        """In the receipt; an answer that was not scanned to its end is never called scanned."""
        unscanned = any(inspection.unscanned for inspection in self._inspections)
        self._call.receipt.note(
            "guard_output",
            guards={
                **self._call.receipt.notes.get("guard_output", {}).get("guards", {}),  # those that only flag
                **{one.guard.name: {**one.facts(), "stream": self._mode(one)} for one in self._inspections},
            },
            scanned=self.scanned and not unscanned and self.cut is None,
        )
        if self._scannable.left_out:
            self._call.receipt.note("guard_output", left_out=sorted(self._scannable.left_out)[:16])
        if self.cut is not None:
            self._call.receipt.note("guard_output", cut=self.cut.facts())

    def _take_in(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        chunk, texts = self._scannable.read(chunk)
        self._envelope = chunk.envelope or self._envelope
        if chunk.delta is None:
            self._passing.append(chunk)
            return
        choice = self._choices.get(chunk.index)
        if choice is None:
            choice = self._choices[chunk.index] = GuardedChoice()
        held = []
        now = self._clock() if texts else 0.0
        for channel, path, text in texts:
            stream = choice.streams.get(channel) or self._begin(choice, channel)
            if stream.unescaping is not None and (plain := stream.unescaping.feed(text)) != text:
                chunk = replace(chunk, delta=put(chunk.delta, path, plain), logprobs=None)
                text = plain
            if stream is not choice.current and (over := choice.switch_to(stream)) is not None:
                self._changed[chunk.index, over.channel] = over
            stream.add((text,), now)
            held.append((stream, path, text, stream.end))
            self._changed[chunk.index, channel] = stream
            choice.characters += len(text)
            if self._limits:
                self._measure(chunk.index, choice, stream)
        if chunk.finish_reason is not None:
            self._complete(chunk.index, choice)
            if held and self._optimistic:  # the text need not wait for the last scan; the end must
                choice.queue.append(HeldChunk(replace(chunk, finish_reason=None, usage=None), held))
                chunk, held = replace(chunk, delta={}, logprobs=None), []
        choice.queue.append(HeldChunk(chunk, held))

    def _leaving(self) -> list[Held]:
        leaving: list[Held] = [HeldChunk(chunk, ()) for chunk in self._passing]
        self._passing = []
        for choice in self._choices.values():
            if choice.complete or not self.holds:
                leaving += choice.leaving()
        return leaving

    def _first_leaving(self, leaving: list[Held]) -> list[Held]:
        """Of these, the first that may leave: not before there is content, as a role or an id that has left would keep
        another answer from taking its place."""
        self._opening += leaving
        if not self._ended and not any(held.is_content for held in leaving):
            return []
        self.shown = True
        leaving, self._opening = self._opening, []
        return leaving
