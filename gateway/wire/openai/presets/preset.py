"""How one provider's form of OpenAI's API differs from OpenAI's own: what its preset says.

Fields that neither OpenAI's reference nor a preset names are sent as they are: what a provider adds tomorrow works.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from gateway.apis import Api
from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire.field_table import DECISIVE, NEUTRAL, unsupported
from gateway.wire.openai.dialect import EMBEDDINGS, OpenAIDialect

OPENAI = frozenset(
    {
        *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs"),
        *("max_completion_tokens", "max_tokens", "metadata", "modalities", "moderation", "n"),
        *(
            "parallel_tool_calls",
            "prediction",
            "presence_penalty",
            "prompt_cache_key",
            "prompt_cache_options",
        ),
        *("prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed"),
        *("service_tier", "stop", "store", "stream_options", "temperature", "tool_choice", "tools"),
        *("top_logprobs", "top_p", "user", "verbosity", "web_search_options"),
        *("dimensions", "encoding_format"),
    }
)
"""Parameters of OpenAI's own (https://platform.openai.com/docs/api-reference/chat/create, /embeddings/create)."""
BASICS = frozenset({"response_format", "stop", "temperature", "tool_choice", "tools", "top_p"})
"""Those that all of these providers take."""
_DECISIVE = DECISIVE | {"dimensions", "n"}
_NEUTRAL: Mapping[str, tuple[Json, ...]] = {**NEUTRAL, "n": (1,)}

Message = Mapping[str, Json]
Raw = Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One provider's. Without ``takes`` its API takes all that OpenAI's does."""

    name: str
    takes: frozenset[str] | None = None
    """OpenAI's parameters that it takes under the same names, beside ``BASICS``."""
    cap: str = "max_tokens"
    """What it calls the cap on an answer's tokens."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Its own names for others of OpenAI's."""
    values: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """Its own values for a parameter's; None leaves the parameter out."""
    schemas: bool = True
    """Takes ``response_format`` of type ``json_schema``."""
    developer: bool = False
    """Takes messages of that role; else they are sent as ``system`` ones."""
    completions: bool = False
    embeddings: frozenset[str] | None = None
    """The parameters of its ``/embeddings``; None where it has no such path."""
    apis: Mapping[Api, str] = field(default_factory=dict)
    """Where it has APIs whose answers are passed on: below its base URL or, with a slash before it, below its host."""
    messages: Callable[[Sequence[Message]], tuple[list[Message], set[str]]] | None = None
    """Messages as it takes them, and the names of what was left out of them."""
    continued: Callable[[list[Message]], list[Message]] | None = None
    """Messages of which it goes on from the last; None where vLLM's fields for it are sent, or nothing."""
    answer: Callable[[Raw], Raw] | None = None
    """A body or an event of its answers, as OpenAI's API has it."""

    def body(
        self, body: dict[str, Json], optional: Collection[str] = ()
    ) -> tuple[dict[str, Json], list[str]]:
        """A request's body as the provider takes it, and what was left out that concerns no more than speed, storage,
        repetition or style; nobody misses what is ``optional``. Raises ``BadRequest`` for what would make it another
        request."""
        self._check_path(body)
        sent: dict[str, Json] = {}
        ignored: set[str] = set()
        for name, value in body.items():
            target = self._target(name, "input" in body)
            if target is None:
                if name == "stream_options" or name in optional:
                    continue
                if value is None or value in _NEUTRAL.get(name, ()):
                    continue
                if name in _DECISIVE:
                    raise unsupported(name)
                ignored.add(name)
                continue
            known = self.values.get(name)
            if known is not None and isinstance(value, str) and (value := known.get(value, value)) is None:
                continue
            sent[target] = value
        if not self.schemas:
            _refuse_schema(sent.get("response_format"))
        if "messages" in sent:
            sent["messages"], left_out = self._messages(sent)
            ignored |= left_out
        return sent, sorted(ignored)

    def dialect(self, of: OpenAIDialect) -> OpenAIDialect:
        """``of`` as the provider answers in it."""
        if (answer := self.answer) is None:
            return of
        read_answer, read_event = of.read_answer, of.read_event
        return replace(
            of,
            read_answer=lambda raw: read_answer(answer(raw)),
            read_event=lambda raw: read_event(answer(raw)),
        )

    def _check_path(self, body: Raw) -> None:
        for field_name, path, has in (
            ("input", EMBEDDINGS.path, self.embeddings is not None),
            ("prompt", "/completions", self.completions),
        ):
            if field_name in body and not has:
                raise BadRequest(
                    f"The API of this model's provider ({self.name}) has no '{path}'. Ask another model.",
                    param="model",
                    code="unsupported_parameter",
                )

    def _target(self, name: str, embeds: bool) -> str | None:
        """What the provider calls a parameter; None where it has none of the kind."""
        if name in ("max_tokens", "max_completion_tokens"):
            return self.cap
        if name not in OPENAI:
            return name
        if embeds:
            takes: frozenset[str] = self.embeddings or frozenset()
            return self.names.get(name, name) if name in takes else None
        if self.takes is None or name in self.takes or name in BASICS or name in self.names:
            return self.names.get(name, name)
        return None

    def _messages(self, sent: dict[str, Json]) -> tuple[list[Message], set[str]]:
        messages: list[Message] = list(sent["messages"])
        if not self.developer:
            messages = [
                {**message, "role": "system"} if message.get("role") == "developer" else message
                for message in messages
            ]
        left_out: set[str] = set()
        if self.messages is not None:
            messages, left_out = self.messages(messages)
        if self.continued is not None and sent.pop("continue_final_message", False):
            sent.pop("add_generation_prompt", None)
            messages = self.continued(messages)
        return messages, left_out


def only(fields: Mapping[str, frozenset[str]], messages: Sequence[Message]) -> tuple[list[Message], set[str]]:
    """``messages`` with the fields that a role of ``fields`` has, and the names of all others that held something."""
    kept: list[Message] = []
    left_out: set[str] = set()
    for message in messages:
        known = fields.get(str(message.get("role")))
        if known is None or message.keys() <= known:
            kept.append(message)
            continue
        kept.append({name: value for name, value in message.items() if name in known})
        left_out.update(
            f"messages.{name}" for name in message.keys() - known if message[name] not in (None, [], "")
        )
    return kept, left_out


def call_ids(messages: Sequence[Message]) -> set[str]:
    """The ids of all tool calls, and of their results."""
    calls = chain.from_iterable(message.get("tool_calls") or () for message in messages)
    found = [call.get("id") for call in calls if isinstance(call, dict)]
    found += [message.get("tool_call_id") for message in messages]
    return {one for one in found if isinstance(one, str)}


def _refuse_schema(wanted: Json) -> None:
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        raise BadRequest(
            "This model's provider does not hold answers to a JSON schema. Ask for 'json_object' and describe the "
            "object in the prompt, or ask another model.",
            param="response_format",
            code="unsupported_parameter",
        )
