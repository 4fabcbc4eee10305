"""The text of an answer, for scans after it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.guards.actions.arguments import argument_texts
from gateway.guards.actions.background import ScanInput
from gateway.guards.actions.deltas import CONTENT, Channel, delta_texts, readable
from gateway.types import Chunk

MAX_CHARACTERS = 2_000_000
"""Characters that are kept of one answer."""
TOO_LONG = "too_long"


class Transcript:
    """All texts of an answer, by choice and channel."""

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
