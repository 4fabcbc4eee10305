"""A conversation summed up by a model (https://platform.openai.com/docs/api-reference/responses/compact)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from gateway.errors import UpstreamFailed
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import Call, ChatRequest, Chunk, Json, Usage
from gateway.wire import json_body
from gateway.wire.responses import ids
from gateway.wire.responses.body import InputBody, read_raw
from gateway.wire.responses.body_to_request import ResponseRequest, read_conversation
from gateway.wire.responses.items import Item
from gateway.wire.responses.sealed import SummarySeal
from gateway.wire.responses.usage import write_usage

INSTRUCTIONS = (
    "Sum up the conversation below, so that another model can go on from your summary alone. Keep what the user wants, "
    "what was decided, found out and done, names, numbers, file names and exact wordings that matter, and what is "
    "still open. Write the summary and nothing else."
)


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ResponseRequest:
    """``POST /v1/responses/compact``. Raises ``BadRequest``."""
    return read_conversation(json_body.check(InputBody, read_raw(data, limits)))


def as_question(
    asked: ResponseRequest, before: Sequence[Item], seal: SummarySeal, tenant: str
) -> ChatRequest:
    """``asked``, after ``before``, as a request for a summary: the conversation is quoted in one message, so that the
    model does not take it up, and no tool has to be declared. Raises ``BadRequest``.
    """
    told = f"{INSTRUCTIONS}\n\n{asked.instructions}" if asked.instructions else INSTRUCTIONS
    quoted = "\n\n".join(line for item in [*before, *asked.items] if (line := _line(item, seal, tenant)))
    item: Item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": f"<conversation>\n{quoted}\n</conversation>"}],
    }
    return ResponseRequest(asked.model, [item], told, asked.params, asked.echo).chat(seal, tenant)


class CompactionWriter:
    """Collects the summary. What the system says is kept as it is, all else is in the summary."""

    def __init__(self, call: Call, conversation: Sequence[Item], seal: SummarySeal) -> None:
        self._call = call
        self._seal = seal
        self._conversation = conversation
        self._text: list[str] = []
        self._usage: Usage | None = None

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        text = (chunk.delta or {}).get("content")
        if isinstance(text, str):
            self._text.append(text)

    def response(self) -> dict[str, Json]:
        """Raises ``UpstreamFailed`` where the model said nothing."""
        summary = "".join(self._text).strip()
        if not summary:
            raise UpstreamFailed("The model gave an empty summary. Try again, or ask another model.")
        response = ids.response_id(self._call.request_id)
        system = [text for item in self._conversation for text in self._system(item)]
        compaction = {
            "type": "compaction",
            "id": ids.item_id("compaction", response, 0),
            "encrypted_content": self._seal.close(self._call.principal.tenant, system, summary),
        }
        return {
            "id": response,
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [compaction],
            "usage": write_usage(self._usage or Usage(0, 0)),
        }

    def _system(self, item: Item) -> list[str]:
        if item["type"] == "compaction":
            return self._seal.open(self._call.principal.tenant, item["encrypted_content"])[0]
        return [_text(item["content"])] if _is_system(item) else []


def _line(item: Item, seal: SummarySeal, tenant: str) -> str:
    match item["type"]:
        case "message" if not _is_system(item):
            return f"{item['role']}: {_text(item['content'])}"
        case "function_call":
            return f"assistant calls {item['name']}: {item['arguments']}"
        case "custom_tool_call":
            return f"assistant calls {item['name']}: {item['input']}"
        case "function_call_output" | "custom_tool_call_output":
            return f"result: {_text(item['output'])}"
        case "compaction":
            _, text = seal.open(tenant, item["encrypted_content"])
            return f"summary of what came before: {text}"
    return ""


def _is_system(item: Item) -> bool:
    return item.get("role") in ("system", "developer")


def _text(content: str | Sequence[Mapping[str, Json]]) -> str:
    if isinstance(content, str):
        return content
    parts = (part.get("text") or part.get("refusal") or f"[{part['type']}]" for part in content)
    return "\n".join(map(str, parts))
