"""Placeholders for originals in a request, and originals for placeholders in its streamed answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from gateway.guards.scanners.escapes import Unescaping
from gateway.guards.texts.arguments import leaf_spans, rewritten
from gateway.guards.texts.deltas import CONTENT, Channel, delta_of, delta_texts, is_json, is_whole, readable
from gateway.guards.texts.edits import Edit, Offsets, applied, shown
from gateway.guards.texts.paths import put
from gateway.guards.texts.request_texts import Kind, RequestText
from gateway.guards.texts.urls import readable_url
from gateway.types import ChatRequest, Chunk

_AT_ONCE = 500
"""Edits between two turns of the event loop."""
_PLACEHOLDER = re.compile(r"<[A-Z0-9_]+_\d+>")


class Placeholders:
    """The placeholders of one request: ``<EMAIL_ADDRESS_1>`` for the first address in it, wherever it occurs."""

    def __init__(self, texts: Iterable[RequestText]) -> None:
        self._taken = {match for text in texts for match in _PLACEHOLDER.findall(text.text)}
        self._by_original: dict[tuple[str, str], str] = {}
        self._redacted: dict[tuple[str, str], int] = {}
        self._count: dict[str, int] = {}

    @property
    def originals(self) -> dict[str, str]:
        """By placeholder."""
        return {placeholder: original for (_, original), placeholder in self._by_original.items()}

    async def edited(self, text: RequestText, edits: list[Edit]) -> str:
        """``text`` with ``edits``, which are in order and without overlaps. Yields to the event loop."""
        if text.kind == "url":
            replacements = await self._replacements(text.text, edits, text.kind)
            return applied(text.document, readable_url(text.document).in_url(edits), replacements)
        if text.kind != "json":
            return await self._edited(text.text, edits, text.kind)
        fresh: dict[int, str] = {}
        first = last = 0
        for number, (start, end) in enumerate(leaf_spans(text.document)):
            while first < len(edits) and edits[first].end <= start:
                first += 1
            while last < len(edits) and edits[last].start < end:
                last += 1
            within = [
                part._replace(start=part.start - start, end=part.end - start)
                for part in (edit.within(start, end) for edit in edits[first:last])
            ]
            if within:
                fresh[number] = await self._edited(text.text[start:end], within)
            if not (number + 1) % _AT_ONCE:
                await asyncio.sleep(0)
        return rewritten(text.document, fresh)

    async def _edited(self, text: str, edits: list[Edit], kind: Kind = "text") -> str:
        return applied(text, edits, await self._replacements(text, edits, kind))

    async def _replacements(self, text: str, edits: list[Edit], kind: Kind) -> list[str]:
        replacements = []
        for number, edit in enumerate(edits, 1):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
            label = shown(edit.label)
            if (
                kind == "name"
            ):  # https://platform.openai.com/docs/api-reference/chat: letters, digits, _ and -
                replacements.append(label)
            elif kind in ("id", "url"):  # which must stay different, and what they are
                original = text[edit.start : edit.end]
                replacements.append(
                    self._placeholder(label, original)[1:-1]
                    if edit.reversible
                    else self._numbered(label, original)
                )
            elif edit.reversible:
                replacements.append(self._placeholder(label, text[edit.start : edit.end]))
            else:
                replacements.append(edit.name)
        return replacements

    def _numbered(self, label: str, original: str) -> str:
        """The same for the same original, which is gone."""
        number = self._redacted.setdefault((label, original), len(self._redacted) + 1)
        return f"{label}_{number}"

    def _placeholder(self, label: str, original: str) -> str:
        known = self._by_original.get((label, original))
        while known is None:
            number = self._count[label] = self._count.get(label, 0) + 1
            known = f"<{label}_{number}>"
            if known in self._taken:
                known = None
        self._by_original[label, original] = known
        return known


class Originals:
    """Originals by placeholder, and what the placeholders look like."""

    def __init__(self, originals: Mapping[str, str]) -> None:
        self.by_name = originals
        self.labels = {name.rpartition("_")[0] for name in originals}
        """With the bracket."""
        self.longest = max(map(len, originals), default=0)


class PlaceholderFiller:
    """Puts the originals into one text of an answer as it streams."""

    __slots__ = ("_labels", "_longest", "_originals", "_position", "_unescaping", "held", "offsets")

    def __init__(self, originals: Originals, *, is_json: bool) -> None:
        self.held = ""
        """Possibly the beginning of a placeholder."""
        self.offsets = Offsets()
        self._originals = originals.by_name
        self._labels = originals.labels
        self._longest = originals.longest
        self._unescaping = Unescaping() if is_json else None
        self._position = 0

    def feed(self, text: str) -> str:
        if self._unescaping is not None:
            text = self._unescaping.feed(text)
        if not self.held and "<" not in text:
            self._position += len(text)
            return text
        text = self.held + text
        start = text.rfind("<")
        tail = text[start:] if start >= 0 else ""
        if tail and self._may_begin(tail):
            self.held = tail
            text = text[:start]
        else:
            self.held = ""
        parts: list[str] = []
        done = 0
        for match in _PLACEHOLDER.finditer(text):
            original = self._originals.get(match[0])
            if original is not None:
                if self._unescaping is not None:
                    original = orjson.dumps(original).decode()[1:-1]
                self.offsets.replace(
                    self._position + match.start(), self._position + match.end(), len(original)
                )
                parts += (text[done : match.start()], original)
                done = match.end()
        self._position += len(text)
        return "".join((*parts, text[done:])) if parts else text

    def _may_begin(self, tail: str) -> bool:
        """Whether ``tail`` may be the beginning of a placeholder."""
        if len(tail) >= self._longest:
            return False
        label, _, number = tail.rpartition("_")
        if label in self._labels and (not number or number.isdecimal()):
            return True
        return any(one.startswith(tail) for one in self._labels)

    def end(self) -> str:
        held, self.held = self.held, ""
        self._position += len(held)
        return held


class Unmasker:
    """Puts a request's originals back into its answer; other placeholders are left."""

    def __init__(self, originals: Mapping[str, str], request: ChatRequest) -> None:
        self._originals = Originals(originals)
        self._request = request
        self._fillers: dict[int, dict[Channel, PlaceholderFiller]] = {}

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """The chunks that can be passed on now."""
        if chunk.delta is None:
            return [chunk]
        if "json" in chunk.delta:
            return [replace(chunk, delta={"json": self._document(chunk.delta["json"])})]
        fillers = self._fillers.setdefault(chunk.index, {})
        delta: Any = chunk.delta
        if isinstance(delta.get("content"), list):
            delta, _ = readable(delta)
        for channel, path, text in delta_texts(delta):
            filler = fillers.get(channel) or self._open(fillers, channel)
            fresh = filler.feed(text)
            if chunk.finish_reason is not None or is_whole(channel):
                fresh += filler.end()
            if fresh != text:
                delta = put(delta, path, fresh)
        # A native block follows the text before it.
        begins = "content_block" in (delta.get("native") or ())
        before = self.end(chunk.index) if chunk.finish_reason is not None or begins else []
        if chunk.revocation is not None:
            chunk = replace(chunk, revocation=self._moved(chunk.revocation, fillers))
        if delta is not chunk.delta:
            chunk = replace(chunk, delta=delta, logprobs=None)
        return [*before, chunk]

    def end(self, index: int | None = None) -> list[Chunk]:
        """The held rest of one choice, or of all."""
        rest = []
        for number, fillers in self._fillers.items():
            if index is None or number == index:
                for channel, filler in fillers.items():
                    if filler.held:
                        rest.append(Chunk(number, delta_of(channel, filler.end()), more=True))
        return rest

    def _document(self, body: bytes) -> bytes:
        """A whole answer in JSON, whose server may have escaped the brackets."""
        for name, original in self._originals.by_name.items():
            written = orjson.dumps(original)[1:-1]
            escaped = f"\\u003c{name[1:-1]}\\u003e"
            body = body.replace(name.encode(), written).replace(escaped.encode(), written)
        return body

    def _open(self, fillers: dict[Channel, PlaceholderFiller], channel: Channel) -> PlaceholderFiller:
        filler = PlaceholderFiller(self._originals, is_json=is_json(channel, self._request))
        fillers[channel] = filler
        return filler

    def _moved(
        self, revocation: Mapping[str, Any], fillers: dict[Channel, PlaceholderFiller]
    ) -> Mapping[str, Any]:
        filler = fillers.get(revocation.get("channel", CONTENT))
        position = revocation.get("from")
        if filler is None or not isinstance(position, int):
            return revocation
        return {**revocation, "from": filler.offsets.of(position)}
