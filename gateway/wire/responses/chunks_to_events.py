"""Chunks as a stream of the Responses API.

The events and their order: https://www.openresponses.org/specification, and OpenAI's types of them
(https://platform.openai.com/docs/api-reference/responses-streaming).
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.errors import GatewayError
from gateway.types import Chunk, Json
from gateway.wire import sse
from gateway.wire.dialect import EventWriter
from gateway.wire.openai.errors import error_value
from gateway.wire.openai.thinking_blocks import ThinkingBlocks
from gateway.wire.responses import ids
from gateway.wire.responses.output_items import (
    OUTPUT_TEXT,
    REFUSAL,
    SUMMARY,
    CallItem,
    MessageItem,
    Part,
    ReasoningItem,
)
from gateway.wire.responses.response_fields import ResponseFields
from gateway.wire.responses.tool_names import InputReader

_DELTA = {
    OUTPUT_TEXT: "response.output_text",
    REFUSAL: "response.refusal",
    SUMMARY: "response.reasoning_summary_text",
}
_CALL, _CUSTOM = "response.function_call_arguments", "response.custom_tool_call_input"


class ResponseEventWriter(EventWriter):
    """Writes one answer as server-sent events."""

    def __init__(self, fields: ResponseFields) -> None:
        self.fields = fields
        self._items: list[MessageItem | ReasoningItem | CallItem] = []
        """Those that were announced, in order."""
        self._calls: dict[int, CallItem] = {}
        self._open: MessageItem | ReasoningItem | None = None
        """The item that text is added to."""
        self._prefix = b""
        """All of an event that adds to the open part, up to its number."""
        self._number = 0
        self._started = False
        self._made = 0
        """Calls that were announced."""
        self._thinking = ThinkingBlocks()

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller."""
        if (
            chunk.usage is not None
            or chunk.finish_reason is not None
            or chunk.revocation is not None
            or chunk.envelope
        ):
            self.fields.observe(chunk)
        delta = chunk.delta
        if delta is None or chunk.index:
            return b""
        text = delta.get("content")
        if (
            len(delta) == 1
            and text
            and isinstance(text, str)
            and chunk.logprobs is None
            and self._prefix
            and isinstance(self._open, MessageItem)
            and (part := self._open.parts[-1]).kind == OUTPUT_TEXT
        ):  # nearly all of them
            part.text.append(text)
            return self._piece(text)
        out = [] if self._started else [self._start()]
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if thinking and isinstance(thinking, str):
            out.append(self._add(SUMMARY, thinking))
        if blocks := self._thinking.feed(delta).get("thinking_blocks"):
            out.append(self._sealed(blocks))
        if text := _plain(text):
            out.append(self._add(OUTPUT_TEXT, text, _logprobs(chunk.logprobs)))
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            out.append(self._add(REFUSAL, refusal))
        out += [self._annotation(one) for one in delta.get("annotations") or ()]
        out += [self._call(piece, i) for i, piece in enumerate(delta.get("tool_calls") or ())]
        return b"".join(out)

    def comment(self, text: str) -> bytes:
        return sse.comment(text)

    def end(self) -> bytes:
        out = [] if self._started else [self._start()]
        out.append(self._close_all())
        response = self.response()
        out.append(self._event(f"response.{response['status']}", {"response": response}))
        return b"".join([*out, sse.DONE])

    def error(self, error: GatewayError) -> bytes:
        """An error, and the response as it is then. Items that are open stay so: there is no more of them."""
        own = error_value(error)["error"]
        # OpenAI's types have the error's fields in the event, Open Responses has them in an object.
        flat = {name: own[name] for name in ("code", "message", "param")}
        out = [] if self._started else [self._start()]
        out.append(self._event("error", {**flat, "error": own}))
        out.append(self._event("response.failed", {"response": self.failed(error)}))
        return b"".join([*out, sse.DONE])

    def response(self) -> dict[str, Json]:
        """The whole of what has come, as its end, without what a guard has revoked."""
        self._revoke()
        return self.fields.ended([item.value(self._status(item)) for item in self._items])

    def failed(self, error: GatewayError) -> dict[str, Json]:
        """What has come of an answer that failed."""
        return self.fields.failed(self.so_far(), error)

    def so_far(self) -> list[Json]:
        """The output of an answer that was broken off."""
        self._revoke()
        return [
            item.value("incomplete" if item.status == "in_progress" else item.status) for item in self._items
        ]

    def _status(self, item: MessageItem | ReasoningItem | CallItem) -> str:
        """Of a whole answer's items; of one that is not whole the last item is what is not, unless it had ended."""
        if item.status != "in_progress":
            return item.status
        return "incomplete" if self.fields.incomplete and item is self._items[-1] else "completed"

    def _event(self, kind: str, fields: Mapping[str, Json]) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(value))

    def _start(self) -> bytes:
        self._started = True
        begun = {"response": self.fields.begun()}
        return self._event("response.created", begun) + self._event("response.in_progress", begun)

    def _id(self, kind: str) -> str:
        return ids.item_id(kind, self.fields.id, len(self._items))

    # Text

    def _piece(self, text: str) -> bytes:
        number = self._number
        self._number += 1
        return self._prefix + b'%d,"delta":' % number + orjson.dumps(text) + b"}\n\n"

    def _add(self, kind: str, text: str, logprobs: list[Json] | None = None) -> bytes:
        """A piece of a text, after what must come before it."""
        out = b""
        item = self._open
        if (
            not isinstance(item, ReasoningItem if kind == SUMMARY else MessageItem)
            or item.status != "in_progress"
        ):
            out, item = self._begin(kind)
        if not item.parts or item.parts[-1].kind != kind:
            if item.parts:
                out += self._close_part(item)
            out += self._begin_part(item, kind)
        part = item.parts[-1]
        part.text.append(text)
        if not logprobs:
            return out + self._piece(text)
        part.logprobs += logprobs
        return out + self._event(
            f"{_DELTA[kind]}.delta", {**_place(item), "delta": text, "logprobs": logprobs}
        )

    def _begin(self, kind: str) -> tuple[bytes, MessageItem | ReasoningItem]:
        out = self._close()
        item: MessageItem | ReasoningItem
        if kind == SUMMARY:
            item = ReasoningItem(self._id("reasoning"), len(self._items))
        else:
            item = MessageItem(self._id("message"), len(self._items))
        self._open = item
        return out + self._added(item, item.value("in_progress")), item

    def _added(self, item: MessageItem | ReasoningItem | CallItem, value: Json) -> bytes:
        self._items.append(item)
        return self._event("response.output_item.added", {"output_index": item.index, "item": value})

    def _begin_part(self, item: MessageItem | ReasoningItem, kind: str) -> bytes:
        item.parts.append(Part(kind))
        place = _place(item)
        more: dict[str, Json] = {"logprobs": []} if kind == OUTPUT_TEXT else {}
        fields = {"type": f"{_DELTA[kind]}.delta", **place, **more}
        self._prefix = (
            b"event: %b\ndata: " % f"{_DELTA[kind]}.delta".encode()
            + orjson.dumps(fields)[:-1]
            + b',"sequence_number":'
        )
        return self._event(_part_event(item, "added"), {**place, "part": item.parts[-1].value()})

    def _close_part(self, item: MessageItem | ReasoningItem) -> bytes:
        part = item.parts[-1]
        place = _place(item)
        more = {"logprobs": part.logprobs} if part.kind == OUTPUT_TEXT else {}
        done = self._event(f"{_DELTA[part.kind]}.done", {**place, part.field: part.whole(), **more})
        return done + self._event(_part_event(item, "done"), {**place, "part": part.value()})

    def _close(self) -> bytes:
        """Ends the item that text is added to."""
        item, self._open, self._prefix = self._open, None, b""
        if item is None or item.status != "in_progress":
            return b""
        return self._done(item, "completed")

    def _done(self, item: MessageItem | ReasoningItem | CallItem, status: str) -> bytes:
        out = b""
        if isinstance(item, CallItem):
            place: dict[str, Json] = {"item_id": item.id, "output_index": item.index}
            if item.reader is not None:
                given = item.given()
                if rest := given["input"][item.reader.length :]:
                    out = self._event(f"{_CUSTOM}.delta", {**place, "delta": rest})
                out += self._event(f"{_CUSTOM}.done", {**place, **given})
            else:
                name = item.name if item.tool is None else item.tool.name
                out = self._event(f"{_CALL}.done", {**place, "name": name, **item.given()})
        elif item.parts:
            out = self._close_part(item)
        item.status = status
        return out + self._event(
            "response.output_item.done", {"output_index": item.index, "item": item.value(status)}
        )

    def _close_all(self) -> bytes:
        self._revoke()
        self._open, self._prefix = None, b""
        return b"".join(
            self._done(item, self._status(item)) for item in self._items if item.status == "in_progress"
        )

    def _revoke(self) -> None:
        """What a guard has revoked is in no event from here on."""
        cut = self.fields.tollgate
        if cut is None or not isinstance(start := cut.get("from"), int):
            return
        channel = cut.get("channel", "content")
        if channel.startswith("tool_calls["):
            call = self._calls.get(int(channel[11:].partition("]")[0]))
            if call is not None:
                call.arguments = ["".join(call.arguments)[: start if channel.endswith(".arguments") else 0]]
            return
        kinds = {"content": OUTPUT_TEXT, "refusal": REFUSAL}
        wanted = kinds.get(channel, SUMMARY)
        for item in self._items:
            for part in () if isinstance(item, CallItem) else item.parts:
                if part.kind == wanted:
                    text = part.whole()
                    if len(text) > start:
                        part.text, part.logprobs, part.annotations = [text[:start]], [], []
                    start = max(start - len(text), 0)

    def _sealed(self, blocks: list[Json]) -> bytes:
        """Signed thoughts belong to the reasoning that is open, and end it: what is thought from here on is another."""
        out, item = b"", self._open
        if not isinstance(item, ReasoningItem):
            out, item = self._begin(SUMMARY)
        item.blocks += blocks  # type: ignore[union-attr]
        return out + self._close()

    def _annotation(self, given: Json) -> bytes:
        """A citation of a provider that searches, nested there."""
        cited = given.get("url_citation") if isinstance(given, dict) else None
        item = self._open
        if not isinstance(cited, dict) or not isinstance(item, MessageItem) or not item.parts:
            return b""
        annotation = {
            "start_index": 0,
            "end_index": 0,
            "title": "",
            "url": "",
            **cited,
            "type": "url_citation",
        }
        part = item.parts[-1]
        part.annotations.append(annotation)
        fields = {**_place(item), "annotation_index": len(part.annotations) - 1, "annotation": annotation}
        return self._event("response.output_text.annotation.added", fields)

    # Calls

    def _call(self, piece: Mapping[str, Json], position: int) -> bytes:
        index = piece.get("index", position)
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = CallItem()
        function = piece.get("function") or {}
        if not call.id:  # what was announced stays
            call.call_id = piece.get("id") or call.call_id
            call.name = function.get("name") or call.name
        arguments = function.get("arguments")
        if arguments:
            call.arguments.append(arguments)
        if call.ignored or not call.name:
            return b""
        if not call.id:
            return self._announce(call)
        return self._arguments(call, arguments) if arguments else b""

    def _announce(self, call: CallItem) -> bytes:
        asked = self.fields.asked
        most = asked.max_tool_calls
        if (asked.callable is not None and call.name not in asked.callable) or self._made == most:
            call.ignored = True
            return b""
        self._made += 1
        out = self._close()
        call.tool = asked.tools.get(call.name)
        if call.tool is not None and call.tool.is_custom:
            call.reader = InputReader()
        call.id = self._id("function_call" if call.reader is None else "custom_tool_call")
        call.index = len(self._items)
        call.call_id = call.call_id or f"call_{call.id.partition('_')[2]}"
        out += self._added(
            call, {**call.value("in_progress"), "arguments" if call.reader is None else "input": ""}
        )
        arguments = "".join(call.arguments)
        return out + self._arguments(call, arguments) if arguments else out

    def _arguments(self, call: CallItem, text: str) -> bytes:
        kind = _CALL
        if call.reader is not None:
            kind, text = _CUSTOM, call.reader.feed(text)
            if not text:
                return b""
        return self._event(f"{kind}.delta", {"item_id": call.id, "output_index": call.index, "delta": text})


def _place(item: MessageItem | ReasoningItem) -> dict[str, Json]:
    """Where an event's text belongs."""
    name = "summary_index" if isinstance(item, ReasoningItem) else "content_index"
    return {"item_id": item.id, "output_index": item.index, name: len(item.parts) - 1}


def _part_event(item: MessageItem | ReasoningItem, what: str) -> str:
    kind = "reasoning_summary_part" if isinstance(item, ReasoningItem) else "content_part"
    return f"response.{kind}.{what}"


def _plain(content: Json) -> str:
    """A content in parts, as some servers send it, as the text of its parts."""
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _logprobs(given: Json) -> list[Json]:
    found = given.get("content") if isinstance(given, dict) else None
    return [
        {"token": "", "logprob": 0.0, "top_logprobs": [], **one, "bytes": one.get("bytes") or []}
        for one in found or ()
        if isinstance(one, dict)
    ]
