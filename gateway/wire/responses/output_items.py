"""The items of an answer while it comes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.types import Json
from gateway.wire.responses import sealed
from gateway.wire.responses.tool_names import InputReader, ToolName, read_input

OUTPUT_TEXT, REFUSAL, SUMMARY = "output_text", "refusal", "summary_text"
"""The kinds of part. A model's thinking is a summary's text: both OpenAI's clients and the Open Responses specification
know the events of that, while each has a name of its own for those of raw reasoning."""


@dataclass(slots=True)
class Part:
    kind: str
    text: list[str] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)

    @property
    def field(self) -> str:
        """The name of its text."""
        return "refusal" if self.kind == REFUSAL else "text"

    def whole(self) -> str:
        return "".join(self.text)

    def value(self) -> dict[str, Json]:
        own: dict[str, Json] = {"type": self.kind, self.field: self.whole()}
        if self.kind == OUTPUT_TEXT:
            own |= {"annotations": self.annotations, "logprobs": self.logprobs}
        return own


@dataclass(slots=True)
class OutputItem:
    """``index`` is its place in the output; it has no id before it is announced."""

    id: str = ""
    index: int = 0
    status: str = "in_progress"


@dataclass(slots=True)
class MessageItem(OutputItem):
    parts: list[Part] = field(default_factory=list)

    def value(self, status: str) -> dict[str, Json]:
        content = [part.value() for part in self.parts]
        return {
            "type": "message",
            "id": self.id,
            "status": status,
            "role": "assistant",
            "content": content,
        }


@dataclass(slots=True)
class ReasoningItem(OutputItem):
    parts: list[Part] = field(default_factory=list)
    blocks: list[Json] = field(default_factory=list)
    """Signed or hidden thoughts, as the provider wants them back."""

    def value(self, status: str) -> dict[str, Json]:
        signed = {"encrypted_content": sealed.seal_thoughts(self.blocks)} if self.blocks else {}
        summary = [part.value() for part in self.parts]
        return {"type": "reasoning", "id": self.id, "status": status, "summary": summary, **signed}


@dataclass(slots=True)
class CallItem(OutputItem):
    """A function call; it can be announced once its name is known."""

    call_id: str = ""
    name: str = ""
    """As the model says it."""
    tool: ToolName | None = None
    """As the caller says it, where that is another tool than a function of this name."""
    arguments: list[str] = field(default_factory=list)
    reader: InputReader | None = None
    """Of a custom tool's arguments."""
    ignored: bool = False
    """It is not to be made: the caller allows no such call, or no more."""

    def value(self, status: str) -> dict[str, Json]:
        named = {"name": self.name} if self.tool is None else self.tool.fields()
        return {
            "type": "function_call" if self.reader is None else "custom_tool_call",
            "id": self.id,
            "status": status,
            "call_id": self.call_id,
            **named,
            **self.given(),
        }

    def given(self) -> dict[str, Json]:
        """What it is called with."""
        arguments = "".join(self.arguments)
        return {"arguments": arguments} if self.reader is None else {"input": read_input(arguments)}
