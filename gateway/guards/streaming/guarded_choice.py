"""One choice of an answer under guard: its texts, and the chunks that wait for them to be cleared."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gateway.deltas import has_content
from gateway.guards.streaming.text_stream import TextStream
from gateway.guards.texts.deltas import delta_of, delta_texts, is_whole
from gateway.guards.texts.paths import Path, put
from gateway.types import Chunk

LARGE = 64
"""Characters of a chunk that may leave in parts."""


@dataclass(slots=True)
class HeldChunk:
    """A chunk that has come and not left."""

    chunk: Chunk
    texts: Sequence[tuple[TextStream, Path, str, int]]
    """Its texts: to which stream each belongs, its path in the delta, the text, and where it ends in the stream."""

    @property
    def is_last(self) -> bool:
        """With it the choice ends."""
        return self.chunk.finish_reason is not None

    @property
    def is_free(self) -> bool:
        """All of its texts may leave."""
        return all(stream.free >= end for stream, _, _, end in self.texts)

    @property
    def is_content(self) -> bool:
        """It shows the client something of the answer."""
        return has_content(self.chunk)

    def each(self) -> Iterable[HeldChunk]:
        return (self,)

    def released(self) -> Chunk:
        """As the client is to see it. To be called once, in order."""
        delta = self.chunk.delta
        for stream, path, text, end in self.texts:
            if not stream.edits and stream.json is None:  # as nearly always
                stream.released = end
                continue
            fresh = stream.release(text)
            if fresh != text:
                delta = put(delta, path, fresh)
        return self.chunk if delta is self.chunk.delta else replace(self.chunk, delta=delta, logprobs=None)

    def split(self) -> HeldChunk | None:
        """The part of a large chunk that may leave, if any; this becomes the rest."""
        if len(self.texts) != 1:
            return None
        stream, path, text, end = self.texts[0]
        free = stream.free - (end - len(text))
        if free <= 0 or len(text) <= LARGE or is_whole(stream.channel):
            return None
        chunk = self.chunk
        part = replace(chunk, delta=put(chunk.delta, path, text[:free]), finish_reason=None, logprobs=None)
        part.usage = None
        rest = delta_of(stream.channel, text[free:])
        self.chunk = replace(chunk, delta=rest, logprobs=None)
        self.texts = [(stream, delta_texts(rest)[0].path, text[free:], end)]
        return HeldChunk(part, [(stream, path, text[:free], end - len(text) + free)])


@dataclass(slots=True)
class HeldPieces:
    """Pieces of one text that came together, each a chunk of its own with nothing else but the envelope."""

    like: Chunk
    """``like.with_text`` makes the chunks."""
    stream: TextStream
    texts: Sequence[str]
    """None of which is ``LARGE``."""
    end: int
    """Where the last of them ends in the stream."""

    is_last = False
    is_content = True

    @property
    def is_free(self) -> bool:
        return self.stream.free >= self.end

    def each(self) -> Iterable[HeldPieces]:
        """One by one."""
        return (self,) if len(self.texts) == 1 else self._each()

    def _each(self) -> Iterator[HeldPieces]:
        end = self.end - sum(map(len, self.texts))
        for text in self.texts:
            end += len(text)
            yield HeldPieces(self.like, self.stream, (text,), end)

    def released(self) -> Chunk:
        """Of one, as the client is to see it."""
        return self.like.with_text(self.released_texts()[0])

    def goes_with(self, other: HeldPieces) -> bool:
        """The chunks of both differ by their texts alone, and these are of one stream."""
        one, two = self.like, other.like
        return other.stream is self.stream and (one is two or one.envelope is two.envelope)

    def released_texts(self) -> Sequence[str]:
        """As the client is to see them. To be called once, in order."""
        if self.stream.edits:
            return [self.stream.release(text) for text in self.texts]
        self.stream.released = self.end
        return self.texts

    def split(self) -> HeldPieces | None:
        """Those that may leave, if any; this becomes the rest."""
        end, free = self.end - sum(map(len, self.texts)), self.stream.free
        count = 0
        for text in self.texts:
            if end + len(text) > free:
                break
            end += len(text)
            count += 1
        if not count:
            return None
        part = HeldPieces(self.like, self.stream, self.texts[:count], end)
        self.texts = self.texts[count:]
        return part


Held = HeldChunk | HeldPieces


@dataclass(slots=True)
class GuardedChoice:
    """Its streams by channel, and its chunks in order."""

    streams: dict[str, TextStream] = field(default_factory=dict)
    queue: deque[Held] = field(default_factory=deque)
    current: TextStream | None = None
    """The text that grew last."""
    characters: int = 0
    complete: bool = False
    """No more text is expected."""
    begun: bool = False
    """The client has seen a chunk of it."""
    finished: bool = False
    """The client has seen its end."""

    def switch_to(self, stream: TextStream) -> TextStream | None:
        """``stream`` grows now; returns the text that is over with that.

        Thoughts are over where content begins, and a call where the next one does: else the end of each would hold
        back all that follows it. Should a server alternate between them after all, each part was scanned by itself
        once, and from then on the text waits for the end of the answer.
        """
        before, self.current = self.current, stream
        if stream.over:
            stream.over = False
            stream.resumed = True
        if before is None or before.resumed:
            return None
        before.over = True
        return before

    def leaving(self) -> list[Held]:
        """Takes from the queue what may leave."""
        queue = self.queue
        free: list[Held] = []
        while queue:
            held = queue[0]
            if held.is_last and not self._is_final():
                break
            if not held.is_free:
                if (part := held.split()) is not None:
                    free.append(part)
                break
            free.append(queue.popleft())
        return free

    def _is_final(self) -> bool:
        return all(
            cursor.final == stream.end for stream in self.streams.values() for cursor in stream.cursors
        )
