"""Output guards: answers are scanned before the caller or a cache has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from gateway.guards.guards import Guard, Guards
from gateway.guards.scans.background import BackgroundScans, ScanInput
from gateway.guards.streaming.streams import guarded
from gateway.guards.texts.arguments import argument_texts
from gateway.guards.texts.deltas import CONTENT, Channel, delta_texts, readable
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunk, Chunks, Handler, Stage

MAX_CHARACTERS = 2_000_000
"""Characters that are kept of one answer."""
TOO_LONG = "too_long"


def guard_output(guards: Guards, flags: BackgroundScans, metrics: Metrics) -> Stage:
    """A tenant without output guards passes untouched, and so does what no guard reads: embeddings, and all that is
    passed on as it comes, which the receipt says."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            mine = guards.of_call(call)
            if not (mine.output or mine.output_flags):
                return following(call)
            if not call.request.generates:
                if call.request.api is not None:
                    call.receipt.note("guard_output", unread=[call.request.api])
                return following(call)
            observed = flagged(mine.output_flags) if mine.output_flags else following
            return guarded(call, mine.output, metrics, observed) if mine.output else observed(call)

        def flagged(flagging: Sequence[Guard]) -> Handler:
            def handle(call: Call) -> Chunks:
                chunks = observed(call)
                call.relays(chunks)
                return chunks

            async def observed(call: Call) -> Chunks:
                transcript = Transcript()
                call.on_discard(transcript.clear)
                background = flags.of(call, flagging, "output")
                for guard in flagging:
                    metrics.guard_streams.labels(guard.name).inc()
                try:
                    async with aclosing(following(call)) as chunks:
                        call.looks_on(chunks, transcript.passed)
                        async for chunk in chunks:
                            transcript.add(chunk)
                            yield chunk
                finally:
                    background.start(transcript.scan_input)

            return handle

        return handle

    return stage


class Transcript:
    """All texts of an answer, by choice and channel, for scans after it has ended."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Another answer is given in place of this one."""
        self._parts: dict[tuple[int, Channel], list[str]] = {}
        self._characters: dict[int, int] = {}
        self._kept = 0

    def passed(self, like: Chunk, texts: Sequence[str]) -> None:
        """As ``add``, for those that went to the call's sink."""
        for text in texts:
            self.add(like.with_text(text))

    def add(self, chunk: Chunk) -> None:
        if chunk.delta is None:
            return
        delta: Mapping[str, object] = chunk.delta
        if len(delta) != 1 or not isinstance(delta.get(CONTENT), str):  # nearly always
            delta, _ = readable(chunk.delta)
        for channel, _, text in delta_texts(delta):
            self._characters[chunk.index] = self._characters.get(chunk.index, 0) + len(text)
            if self._kept < MAX_CHARACTERS:
                self._parts.setdefault((chunk.index, channel), []).append(text)
            self._kept += len(text)

    def scan_input(self) -> ScanInput:
        """Of the arguments of tool calls, the parsed keys and values."""
        texts = ("".join(parts) for parts in self._parts.values())
        return ScanInput(
            texts=[
                (argument_texts(text) if channel.endswith(".arguments") else text, "answer")
                for (_, channel), text in zip(self._parts, texts, strict=True)
            ],
            lengths=list(self._characters.values()),
            unread=[TOO_LONG] if self._kept > MAX_CHARACTERS else [],
        )
