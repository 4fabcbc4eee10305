"""A conversation's items as the messages of a chat completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.types import Json
from gateway.wire.responses.items import Item
from gateway.wire.responses.sealed import SummarySeal, thoughts
from gateway.wire.responses.tool_names import function_name, write_input

Message = dict[str, Json]

SUMMARY = "Summary of the conversation so far:\n\n"


def write_messages(
    items: Sequence[Item], instructions: str | None, seal: SummarySeal, tenant: str
) -> list[Message]:
    """What the model said in one turn (thoughts, text, calls) is one message. ``seal`` opens ``tenant``'s compactions.

    Raises ``BadRequest``.
    """
    builder = _Builder(_last_user_message(items), seal, tenant)
    if instructions:
        builder.messages.append({"role": "system", "content": instructions})
    for i, item in enumerate(items):
        builder.add(item, i)
    return builder.messages


class _Builder:
    def __init__(self, recent: int, seal: SummarySeal, tenant: str) -> None:
        """From item ``recent`` on thoughts are sent along. Models need them until their turn is over; later ones do
        without, and many servers do not take them."""
        self.messages: list[Message] = []
        self._recent = recent
        self._seal = seal
        self._tenant = tenant
        self._thoughts: dict[str, Json] = {}

    def add(self, item: Item, index: int) -> None:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                self._said(item["content"])
            case "message":
                # The newer role is not known to all servers, and means the same.
                role = "user" if item["role"] == "user" else "system"
                self._given(role, item["content"])
            case "function_call":
                self._called(item, item["arguments"])
            case "custom_tool_call":
                self._called(item, write_input(item["input"]))
            case "function_call_output" | "custom_tool_call_output":
                self._output(item)
            case "reasoning" if index >= self._recent:
                self._thought(item)
            case "compaction":
                self._compaction(item)

    def _turn(self) -> Message:
        """The message of the assistant's that is being put together; a call's results end it."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or self._thoughts:
            last = {"role": "assistant", "content": None, **self._thoughts}
            self._thoughts = {}
            self.messages.append(last)
        return last

    def _called(self, item: Item, arguments: str) -> None:
        function = {"name": function_name(item["name"], item.get("namespace")), "arguments": arguments}
        call = {"id": item["call_id"], "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def _said(self, parts: Sequence[Mapping[str, Json]]) -> None:
        text = "".join(part["text"] for part in parts if "text" in part)
        refusal = "".join(part["refusal"] for part in parts if "refusal" in part)
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "assistant" and not self._thoughts:
            # Two messages in a row: not every server takes them apart.
            if last.get("tool_calls") or last["content"] is None:
                last["content"] = (last["content"] or "") + text
            else:
                last["content"] += "\n\n" + text
            return
        turn = self._turn()
        turn["content"] = text
        if refusal:
            turn["refusal"] = refusal

    def _given(self, role: str, parts: Sequence[Mapping[str, Json]]) -> None:
        self._thoughts = {}
        self.messages.append({"role": role, "content": _content(parts)})

    def _output(self, item: Item) -> None:
        """The message of a tool, which is text only in chat completions; pictures follow in one of the user's."""
        output = item["output"]
        shown: list[Mapping[str, Json]] = []
        if not isinstance(output, str):
            shown = [part for part in output if "text" not in part]
            output = "\n".join(part["text"] for part in output if "text" in part)
            output = output or ("The result follows." if shown else "")
        self.messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        if shown:
            self._given("user", shown)

    def _thought(self, item: Item) -> None:
        parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
        text = "\n\n".join(part["text"] for part in parts if isinstance(part, dict) and _is_text(part))
        known = self._thoughts
        if text:
            known["reasoning_content"] = "\n\n".join(filter(None, (known.get("reasoning_content"), text)))
        if blocks := thoughts(item.get("encrypted_content")):
            known["thinking_blocks"] = [*known.get("thinking_blocks", ()), *blocks]

    def _compaction(self, item: Item) -> None:
        system, text = self._seal.open(self._tenant, item["encrypted_content"])
        self.messages += [{"role": "system", "content": one} for one in system]
        self.messages.append({"role": "user", "content": SUMMARY + text})


def _last_user_message(items: Sequence[Item]) -> int:
    found = [
        i
        for i, item in enumerate(items)
        if item["type"] == "compaction" or (item["type"] == "message" and item["role"] == "user")
    ]
    return found[-1] if found else 0


def _content(parts: Sequence[Mapping[str, Json]]) -> Json:
    """A single text as a plain string, which every server takes."""
    written = [_part(part) for part in parts]
    return written[0]["text"] if len(written) == 1 and written[0]["type"] == "text" else written


def _part(part: Mapping[str, Json]) -> dict[str, Json]:
    match part["type"]:
        case "input_image":
            where = {"file_id": part["file_id"]} if "file_id" in part else {"url": part["image_url"]}
            return {"type": "image_url", "image_url": {**where, "detail": part["detail"]}}
        case "input_file":
            file = {"filename": part["filename"]} if part.get("filename") else {}
            if "file_id" in part:
                return {"type": "file", "file": {**file, "file_id": part["file_id"]}}
            # Chat completions have no field for an address; those who fetch files take it there.
            return {"type": "file", "file": {**file, "file_data": part.get("file_data") or part["file_url"]}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
    return {"type": "text", "text": part["text"]}


def _is_text(part: Mapping[str, Json]) -> bool:
    return isinstance(part.get("text"), str)
