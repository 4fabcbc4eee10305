"""From a validated body to what is generated: prompts as token ids, limits, seeds."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.core.sampling_params import Grammar, SamplingParams
from engine.errors import ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from engine.messages import Ready
from engine.server.adapters import Adapters
from engine.server.body import read
from engine.server.fields import listed
from engine.server.generate import ChoiceRequest
from engine.server.reasoning import ReasoningFormat, place_of, shown, split
from engine.server.reasoning import detect as detect_reasoning
from engine.server.reasoning_request import budget_of, given_fields, variables, wish_of, with_reasoning
from engine.server.renderer import Renderer
from engine.server.requests import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    SamplingBody,
    TokenizeBody,
)
from engine.server.responses import ChatResponseWriter, CompletionResponseWriter, ResponseWriter, Usage
from engine.server.structured import chat_grammar_of, grammar_of
from engine.server.tokenizer import Tokenizer
from engine.server.tools import Format, detect, template_messages, template_tools
from engine.server.tools_parser import ToolParser
from engine.server.tools_strict import is_strict

MAX_TOKENS = "x-tollgate-max-tokens"
"""The header with the value that ``max_tokens`` was clipped to: the smallest, where prompts differ."""
IGNORED = "x-tollgate-ignored"
"""The header that names the fields which had no effect."""

_LONG = 8192
"""Characters from which text is tokenized in a thread: about two milliseconds' worth."""
_DEFAULT = 16
"""Default ``max_tokens`` of a plain completion, OpenAI's."""


@dataclass(slots=True)
class PreparedRequest:
    sequences: list[ChoiceRequest]
    stops: list[str]
    stream: bool
    include_usage: bool
    answer: ResponseWriter
    usage: Usage
    adapter: str | None = None
    """The requested adapter's key."""
    cache_salt: str | None = None
    """The caller's own: only requests with the same salt find this one's blocks in the prefix cache,"""
    shared: int = 0
    """except those of its first so many tokens."""
    pin: float = 0.0
    """Seconds for which the prompt is to be kept after the answer."""
    headers: dict[str, str] = field(default_factory=dict)
    """Response headers that report changes to the request."""


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """The context that a request may use."""

    limit: int
    """Most tokens of prompt and answer together."""
    refuse: bool = False
    """Raise an error instead of clipping ``max_tokens`` to what is left."""

    def grant(self, prompt: list[int], wanted: int | None, param: str, field: str) -> int:
        """Tokens that the answer may have: as many as requested, or as are left. Raises ``ContextLengthExceeded``.

        ``param`` and ``field`` are where the prompt and the wanted number were given.
        """
        left = self.limit - len(prompt)
        if left < 1:
            raise ContextLengthExceeded(len(prompt), wanted, limit=self.limit, param=param, prompt=param)
        if wanted is None:
            return left
        if wanted > left and self.refuse:
            raise ContextLengthExceeded(len(prompt), wanted, limit=self.limit, param=field, prompt=param)
        return min(wanted, left)


@dataclass(slots=True)
class Preparer:
    models: Adapters
    """Models by name."""
    engine: Ready
    tokenizer: Tokenizer
    template: Renderer | None
    longest_string: int | None = None
    """Most characters of a string in a forced call that its schema does not bound."""
    format: Format = field(init=False)
    """How the model writes tool calls."""
    reasoning: ReasoningFormat | None = field(init=False)
    """How it writes reasoning; ``None``: it does not."""

    def __post_init__(self) -> None:
        self.format = detect(self.template.templates.with_tools if self.template else "")
        self.reasoning = detect_reasoning(self.template.templates.with_tools if self.template else "")

    async def chat(self, data: bytes, budget: ContextBudget, shares_system: bool = False) -> PreparedRequest:
        """``shares_system``: the blocks of the system prompt are shared by all tenants. Raises ``InvalidRequest``."""
        body = read(ChatBody, data)
        self._check_model(body)
        if self.template is None:
            raise InvalidRequest("This model has no chat template: use /v1/completions.", param="messages")
        form = self.format
        tools = body.callable_tools or None
        text, messages = await self._render(body, self.template)
        prompt = await self._encode(text, special=False, param="messages", limit=budget.limit)
        continued = body.continue_final_message and messages[-1]["content"]
        wanted = body.max_completion_tokens or body.max_tokens
        field = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        max_tokens = budget.grant(prompt, wanted, "messages", field)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        context = self.tokenizer.context(prompt) if continued else []
        prefix = str(continued) if continued else ""
        grammar = await chat_grammar_of(body, form, self.tokenizer.marker, prefix, self.longest_string)
        if grammar and grammar.trigger and not self.tokenizer.spells_bytes:
            grammar = None  # as `_job` says
        begins = body.add_generation_prompt is not False or continued
        if thinks := self.reasoning if begins else None:
            place = place_of(thinks, text, str(continued) if continued else None)
            grammar = grammar and with_reasoning(grammar, thinks, place, self.tokenizer)
        sequences = self._sequences(body, prompt, max_tokens, wanted, logprobs, context, grammar=grammar)
        for sequence in sequences if tools else ():
            # A form that is asked for may look like a call; where calls are forced they have their markers.
            sequence.parser = self._parser(body, grammar)
        if thinks:
            wish = wish_of(body)
            bound = budget_of(wish, thinks, place, self.tokenizer, grammar)
            tokens, texts = shown(thinks, self.tokenizer.added)
            for sequence in sequences:
                sequence.reasoning = split(thinks, texts, place)
                # Only the split knows the signs that its markers are shown as.
                sequence.shown = tokens if sequence.reasoning else {}
                sequence.hides_reasoning = wish.hidden
                sequence.params = replace(sequence.params, reasoning=bound)
        answer = ChatResponseWriter(body.model, include_usage=body.include_usage)
        prepared = self._job(body, sequences, answer, len(prompt), wanted)
        if shares_system:
            prepared.shared = await self._system_tokens(messages, text, prompt)
        return prepared

    async def tokenize(self, data: bytes) -> dict[str, Any]:
        """A prompt's token ids, as a request with that prompt would have them; of any length that a body can have.

        Raises ``InvalidRequest``.
        """
        body = read(TokenizeBody, data)
        self.models.key(body.model)
        if body.messages is None:
            text, special = body.prompt or "", body.add_special_tokens is not False
        elif self.template is None:
            raise InvalidRequest("This model has no chat template: send a 'prompt'.", param="messages")
        else:
            text, _ = await self._render(read(ChatBody, data), self.template)
            special = False
        ids = await self._ids(text, special=special)
        written: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": self.engine.max_model_len,
            "tokens": [] if body.count_only else ids,
        }
        if body.return_token_strs and not body.count_only:
            written["token_strs"] = [self.tokenizer.name_of(token) for token in ids]
        return written

    async def detokenize(self, data: bytes) -> dict[str, Any]:
        """The text of token ids. Raises ``InvalidRequest``."""
        body = read(DetokenizeBody, data)
        self.models.key(body.model)
        self._check_ids(body.tokens, "tokens")
        return {"prompt": await asyncio.to_thread(self.tokenizer.decode, body.tokens)}

    async def _render(self, body: ChatBody, template: Renderer) -> tuple[str, list[dict[str, Any]]]:
        """The prompt's text, and the messages as the template got them."""
        tools = body.callable_tools or None
        messages = template_messages(body.template_messages(), self.format, tools or ())
        tools = template_tools(tools, self.format)
        more = variables(wish_of(body), body, self.reasoning)
        if body.continue_final_message:
            return await template.render_open(messages, tools, more), messages
        begin = body.add_generation_prompt is not False
        return await template.render(messages, tools, generation_prompt=begin, variables=more), messages

    async def completion(
        self, data: bytes, budget: ContextBudget, shares_system: bool = False
    ) -> PreparedRequest:
        """A completion has no system prompt to share. Raises ``InvalidRequest``."""
        body = read(CompletionBody, data)
        self._check_model(body)
        prompts, echoes = [], []
        for given in body.prompts:
            if isinstance(given, str):
                prompts.append(await self._encode(given, special=True, param="prompt", limit=budget.limit))
            else:
                self._check_ids(given, "prompt")
                prompts.append(given)
            echoes.append(
                (given if isinstance(given, str) else self.tokenizer.decode(given)) if body.echo else ""
            )
        grammar = await grammar_of(body)
        wanted = body.max_tokens
        granted = [budget.grant(prompt, wanted, "prompt", "max_tokens") for prompt in prompts]
        if wanted is None:
            granted = [min(_DEFAULT, most) for most in granted]
        sequences = [
            sequence
            for prompt, echo, max_tokens in zip(prompts, echoes, granted, strict=True)
            for sequence in self._sequences(
                body, prompt, max_tokens, wanted, body.logprobs, self.tokenizer.context(prompt), echo, grammar
            )
        ]
        most = self.engine.max_num_seqs + self.engine.max_waiting
        if len(prompts) > 1 and len(sequences) > most:
            raise InvalidRequest(
                f"{len(sequences)} answers at once are more than the {most} that this engine can queue.",
                param="prompt",
            )
        answer = CompletionResponseWriter(body.model, include_usage=body.include_usage)
        return self._job(body, sequences, answer, sum(map(len, prompts)), wanted)

    def _job(
        self,
        body: SamplingBody,
        sequences: list[ChoiceRequest],
        answer: ResponseWriter,
        prompt_tokens: int,
        wanted: int | None,
    ) -> PreparedRequest:
        usage, adapter = Usage(prompt_tokens), self.models.key(body.model)
        prepared = PreparedRequest(
            sequences, body.stops, bool(body.stream), body.include_usage, answer, usage, adapter
        )
        prepared.cache_salt = body.cache_salt
        if body.prompt_cache_options is not None:
            prepared.pin = body.prompt_cache_options.seconds
        granted = min(sequence.params.max_tokens for sequence in sequences)
        if wanted and granted < wanted:
            prepared.headers[MAX_TOKENS] = str(granted)
        ignored = body.ignored
        if self.reasoning is None and isinstance(body, ChatBody):
            ignored = sorted([*ignored, *given_fields(body)])
        if not self.tokenizer.spells_bytes and isinstance(body, ChatBody):
            ignored = [*ignored, *(["strict"] if any(map(is_strict, body.callable_tools)) else [])]
        if names := listed(ignored):
            prepared.headers[IGNORED] = names
        return prepared

    async def _system_tokens(self, messages: list[dict[str, Any]], text: str, prompt: list[int]) -> int:
        """Tokens of ``prompt``, which is ``text``, up to where its first message ends, if that is a system prompt.

        Only as far as the message alone renders the same: what a template puts before it, such as tools, is not shared.
        """
        if self.template is None or messages[0]["role"] != "system":
            return 0
        try:
            alone = await self.template.render(messages[:1], generation_prompt=False)
        except InvalidRequest:
            return 0
        ids = self.tokenizer.encode(alone[: _common(alone, text)], special=False)
        return _common(ids, prompt)

    def _sequences(
        self,
        body: SamplingBody,
        prompt: list[int],
        max_tokens: int,
        wanted: int | None,
        logprobs: int | None,
        context: list[int],
        echo: str = "",
        grammar: Grammar | None = None,
    ) -> list[ChoiceRequest]:
        least = body.min_tokens or 0
        if wanted is not None and wanted > max_tokens:
            least = min(least, max_tokens)
        if least > max_tokens:
            raise InvalidRequest(
                f"'min_tokens' is {body.min_tokens}, but the answer may have {max_tokens} tokens at most.",
                param="min_tokens",
            )
        stop_ids = frozenset() if body.ignore_eos else self.tokenizer.stop_ids
        if grammar is not None and grammar.trigger is None:
            self._check_end(body)
            if body.ignore_eos and not body.stop_token_ids:
                # A grammar needs a token after its end, and ends as late as it can.
                stop_ids, least = self.tokenizer.stop_ids, max_tokens
        biases = body.biases
        found = []
        for i in range(body.n or 1):
            # Choices of one seeded request differ, each in the same way every time.
            seed = secrets.randbits(64) if body.seed is None else body.seed + (i << 32)
            scores = logprobs if echo and not found else None
            params = SamplingParams(
                # One token is sampled even where none is requested, as the prompt has to be computed.
                max_tokens=max(1, max_tokens),
                min_tokens=least,
                temperature=1.0 if body.temperature is None else body.temperature,
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=max(0, body.top_k or 0),
                min_p=body.min_p or 0.0,
                presence_penalty=body.presence_penalty or 0.0,
                frequency_penalty=body.frequency_penalty or 0.0,
                repetition_penalty=body.repetition_penalty or 1.0,
                logit_bias=biases,
                seed=seed % 2**64,
                stop_token_ids=stop_ids.union(body.stop_token_ids or ()),
                logprobs=logprobs,
                prompt_logprobs=scores,
                grammar=grammar,
            )
            own_stops = frozenset(body.stop_token_ids or ())
            silent = max_tokens == 0
            spared = body.min_tokens or 0
            found.append(ChoiceRequest(prompt, params, context, echo, silent, None, own_stops, spared))
        return found

    def _parser(self, body: ChatBody, grammar: Grammar | None) -> ToolParser:
        held = grammar is not None and grammar.trigger is not None
        strict = {tool["function"]["name"] for tool in body.callable_tools if held and is_strict(tool)}
        functions = [tool["function"] for tool in body.callable_tools]
        schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        only = 1 if body.parallel_tool_calls is False else None
        return ToolParser(
            self.format,
            schemas,
            whole=not body.stream,
            only=only,
            schemas=schemas,
            unmarked=grammar is None or (held and self.format.layout != "channel"),
            strict=strict,
            distinct=body.tool_choice == "required",
        )

    def _check_end(self, body: SamplingBody) -> None:
        if not (self.tokenizer.stop_ids or body.stop_token_ids):
            raise UnsupportedParameter(
                "This model has no token that ends an answer, so no form can be asked of it: give 'stop_token_ids'.",
                param="stop_token_ids",
            )
        if not self.tokenizer.spells_bytes:
            raise UnsupportedParameter(
                "No form can be asked of this model: its tokenizer does not spell bytes."
            )

    async def _encode(self, text: str, *, special: bool, param: str, limit: int) -> list[int]:
        # No token is longer than the longest, so a very long text need not be tokenized to know that it does not fit
        # (twice that, as a normalizer may shorten it).
        if len(text) > 2 * limit * self.tokenizer.longest:
            raise ContextLengthExceeded(
                len(text) // self.tokenizer.longest, None, limit=limit, param=param, prompt=param
            )
        ids = await self._ids(text, special=special)
        if not ids:
            raise InvalidRequest("The prompt has no tokens.", param=param)
        return ids

    async def _ids(self, text: str, *, special: bool) -> list[int]:
        if len(text) < _LONG:
            return self.tokenizer.encode(text, special=special)
        return await asyncio.to_thread(self.tokenizer.encode, text, special=special)

    def _check_model(self, body: SamplingBody) -> None:
        self.models.key(body.model)
        self._check_ids(body.stop_token_ids or (), "stop_token_ids")
        self._check_ids([token for token, _ in body.biases], "logit_bias")

    def _check_ids(self, ids: Collection[int], param: str) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self.engine.vocab_size):
            raise InvalidRequest(f"Token ids must be from 0 to {self.engine.vocab_size - 1}.", param=param)


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the common prefix."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
