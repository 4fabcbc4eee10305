"""OpenAI's two request bodies, validated: unsupported fields that would change the answer are refused by name.

The fields are those of https://platform.openai.com/docs/api-reference/chat/create and
https://platform.openai.com/docs/api-reference/completions/create, and those of
open-weight servers, as vLLM has them: ``top_k``, ``min_p``, ``repetition_penalty``, ``min_tokens``, ``ignore_eos``,
``stop_token_ids``, ``guided_json`` and its relatives, ``structured_outputs``, ``cache_salt``,
``chat_template_kwargs``, ``add_generation_prompt`` and ``continue_final_message``
(https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.errors import InvalidRequest, UnsupportedParameter
from engine.server.body import MAX_BIASES, StrictBody
from engine.server.fields import ignored

MAX_CHOICES = 128
MAX_STOP_TOKENS = 128
MAX_MESSAGES = 8192
MAX_PARTS = 1024
"""Of a message's content, and calls of a message."""
MAX_TOOLS = 256
"""Twice as many as OpenAI takes."""
MAX_TEXTS = 16_384
"""To choose from in ``guided_choice``."""
_DAY = 86400.0
"""Seconds."""


class StreamOptions(StrictBody):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class PromptCacheOptions(StrictBody):
    """OpenAI's, of which the least time counts; more precise than theirs, which is ``30m``."""

    model_config = ConfigDict(extra="ignore")

    ttl: Annotated[str, Field(pattern=r"^[0-9]{1,5}[smh]$")] | None = None

    @property
    def seconds(self) -> float:
        """At most a day's; 0: none were asked for."""
        if self.ttl is None:
            return 0.0
        return min(_DAY, int(self.ttl[:-1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[self.ttl[-1]])


class JsonSchema(StrictBody):
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    """The schema is enforced whether this is true or not."""


class ResponseFormat(StrictBody):
    type: str
    json_schema: JsonSchema | None = None


# Lists fail at the first mistake, and are bounded: pydantic makes an object of each mistake, and a body could have a
# million.
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True, min_length=1, max_length=MAX_TEXTS)
]


class StructuredOutputs(StrictBody):
    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Choices | None = None


class SamplingBody(StrictBody):
    """What both bodies share. Fields beyond these are refused or ignored, as ``engine/server/fields.py`` says."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True, max_length=16)]
        | None
    ) = None
    stop_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, max_length=MAX_STOP_TOKENS)] | None
    ) = None
    ignore_eos: bool | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    # Bounded so that logits stay within float32.
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)] | None
    ) = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """vLLM's: only requests with the same salt find this one's blocks in the prefix cache."""

    @property
    def ignored(self) -> list[str]:
        """Fields that were given and have no effect. Raises ``UnsupportedParameter`` for what cannot be ignored."""
        return ignored(self.model_extra or {})

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        return tuple((int(token), bias) for token, bias in (self.logit_bias or {}).items())

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self) -> None:
        """Raises ``InvalidRequest`` for what types do not express."""
        _ = self.ignored
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
            )
        for token in self.logit_bias or ():
            # With a single spelling no token can occur twice.
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", token):
                raise InvalidRequest(
                    f"'logit_bias' has token ids for keys, such as \"1024\", not {token[:20]!r}.",
                    param="logit_bias",
                )


Parts = Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_PARTS)]


class ChatMessage(BaseModel):
    """Fields beyond these go to the chat template as they are."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Parts | None = None
    tool_calls: Parts | None = None


class ChatBody(SamplingBody):
    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_reasoning_tokens: Annotated[int, Field(ge=0)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=0)] | None = None
    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise InvalidRequest(
                "'max_tokens' and 'max_completion_tokens' mean the same: give one.",
                param="max_completion_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs"
            )
        self._check_tools()
        self._check_messages()
        if self.continue_final_message:
            self._check_final_message()

    def template_messages(self) -> list[dict[str, Any]]:
        """Messages as templates expect them: one text each, the newer role 'developer' as 'system', and no nulls
        except the content."""
        messages = []
        for message in self.messages:
            plain = message.model_dump(exclude_unset=True, exclude_none=True)
            plain["content"] = _text(message.content)
            if plain["role"] == "developer":
                plain["role"] = "system"
            messages.append(plain)
        return messages

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else self.tools or []

    def _check_tools(self) -> None:
        names = set()
        for i, tool in enumerate(self.tools or ()):
            if isinstance(tool.get("type"), str) and tool["type"] != "function":
                raise UnsupportedParameter(
                    f"Tools of type {tool['type']!r:.50} are not supported by this engine, only functions.",
                    param=f"tools[{i}].type",
                )
            function = tool.get("function")
            function = function if isinstance(function, dict) else {}
            name = function.get("name")
            if tool.get("type") != "function" or not isinstance(name, str) or not name:
                raise InvalidRequest(
                    "A tool must be {'type': 'function', 'function': {'name': …}}.", param=f"tools[{i}]"
                )
            parameters = function.get("parameters") or {}
            if not isinstance(parameters, dict):
                raise InvalidRequest(
                    "A tool's parameters must be a JSON schema.", param=f"tools[{i}].function.parameters"
                )
            kinds = parameters.get("type", "object")
            if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
                raise InvalidRequest(
                    f"A tool's parameters must be a JSON schema of type 'object', not {kinds!r:.50}.",
                    param=f"tools[{i}].function.parameters",
                )
            if not isinstance(strict := function.get("strict"), bool | None):
                raise InvalidRequest(
                    f"A tool's 'strict' must be true or false, not {strict!r:.50}.",
                    param=f"tools[{i}].function.strict",
                )
            names.add(name)
        choice = self.tool_choice
        if choice in (None, "auto", "none"):
            return
        if choice == "required":
            if not names:
                raise InvalidRequest(
                    "'tool_choice' is 'required', but there are no tools.", param="tool_choice"
                )
            return
        function = (
            choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
        )
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                "'tool_choice' must be 'auto', 'none', 'required' or "
                "{'type': 'function', 'function': {'name': …}}.",
                param="tool_choice",
            )
        if function["name"] not in names:
            raise InvalidRequest(f"'tool_choice' names no tool: {function['name']!r}.", param="tool_choice")

    def _check_messages(self) -> None:
        for i, message in enumerate(self.messages):
            content = message.content
            if content is None and not (message.role == "assistant" and message.tool_calls):
                raise InvalidRequest("The message has no content.", param=f"messages[{i}].content")
            for j, part in enumerate(content if isinstance(content, list) else ()):
                place = f"messages[{i}].content[{j}]"
                kind = part.get("type")
                if kind not in ("text", "refusal"):
                    raise UnsupportedParameter(
                        f"Content of type {kind!r} is not supported: this model reads text only.",
                        param=f"{place}.type",
                    )
                if not isinstance(part.get(kind), str):
                    raise InvalidRequest(f"A part of type {kind!r} needs a string {kind!r}.", param=place)

    def _check_final_message(self) -> None:
        if self.add_generation_prompt:
            raise InvalidRequest(
                "'continue_final_message' and 'add_generation_prompt' cannot both be true: an answer is either "
                "continued or begun.",
                param="continue_final_message",
            )
        last, place = self.messages[-1], f"messages[{len(self.messages) - 1}]"
        if last.role != "assistant":
            raise InvalidRequest(
                f"'continue_final_message' needs an assistant's message at the end, not one of role {last.role!r}.",
                param=f"{place}.role",
            )
        if last.tool_calls or last.content is None:
            raise InvalidRequest(
                "'continue_final_message' continues text: the final message must have a content and no tool calls.",
                param=f"{place}.content" if last.content is None else f"{place}.tool_calls",
            )


class TokenizeBody(StrictBody):
    """As vLLM has it: a text, or a conversation (``ChatBody``) with the chat template around it."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(min_length=1)]
    prompt: str | None = None
    messages: Any = None
    add_special_tokens: bool | None = None
    """Of a text; a chat template has its own."""
    return_token_strs: bool | None = None
    count_only: bool | None = None
    """Leaves out the ids."""

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("Send either a 'prompt' or 'messages'.", param="prompt")


class DetokenizeBody(StrictBody):
    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(min_length=1)]
    tokens: Annotated[list[int], Field(fail_fast=True)]


class CompletionBody(SamplingBody):
    prompt: (
        str
        | Annotated[list[int], Field(fail_fast=True, min_length=1)]
        | Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES)]
        | Annotated[
            list[Annotated[list[int], Field(fail_fast=True, min_length=1)]],
            Field(fail_fast=True, min_length=1, max_length=MAX_CHOICES),
        ]
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0 with ``echo`` alone: how likely the prompt is."""
    best_of: int | None = None

    def check(self) -> None:
        super().check()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise UnsupportedParameter(
                "'best_of' is not supported by this engine: leave it out or set it to 'n'.", param="best_of"
            )
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest(
                "'max_tokens' may be 0 only with 'echo': give at least 1 for an answer.", param="max_tokens"
            )
        if len(self.prompts) * (self.n or 1) > MAX_CHOICES:
            raise InvalidRequest(
                f"{len(self.prompts)} prompts times n = {self.n} are more than {MAX_CHOICES} answers.",
                param="n",
            )

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


def _text(content: str | list[dict[str, Any]] | None) -> str | None:
    if isinstance(content, list):
        return "".join(part[part["type"]] for part in content)
    return content
