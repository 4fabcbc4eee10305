"""Messages → one prompt, by the model's own Jinja template, in a sandbox.

As transformers' ``apply_chat_template`` renders it, to the byte, except for null contents. The sandbox restricts what
templates can access; ``renderer.py`` limits time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError

from engine.errors import InvalidRequest, ModelUnavailable
from engine.server.reasoning import THOUGHTS
from engine.server.template_environment import Nothing, environment
from engine.server.template_files import Templates

_PLACE = "\ue000\ue001\ue002"
"""Placeholder for an unfinished answer while the template is rendered: three private-use characters."""
_REFUSALS = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RuntimeError,
)
"""What a template may raise for messages that it does not support."""


class ChatTemplate:
    def __init__(
        self, templates: Templates, tokens: Mapping[str, str] | None = None, *, longest: int | None = None
    ) -> None:
        """``tokens``: special tokens by role, such as ``bos_token``. ``longest``: most characters of a prompt.

        Raises ``ModelUnavailable`` if a source is not valid Jinja.
        """
        try:
            self._template = environment().from_string(templates.default)
            self._with_tools = environment().from_string(templates.with_tools)
        except (*_REFUSALS, SyntaxError) as error:
            # Python's compiler raises the latter, for blocks that nest too deeply.
            raise ModelUnavailable(f"The model's chat template does not parse: {error}.") from error
        self._longest = longest
        self._tokens = {"bos_token": "", "eos_token": "", **(tokens or {})}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation_prompt: bool = True,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """``variables``: more that the template reads, such as ``enable_thinking``.

        Raises ``InvalidRequest`` when the template rejects these messages.
        """
        try:
            pieces = (self._template if tools is None else self._with_tools).generate(
                {
                    **variables,
                    "messages": [_shown(message) for message in messages],
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": generation_prompt,
                    **self._tokens,
                }
            )
            return self._joined(pieces)
        except _REFUSALS as error:
            raise InvalidRequest(
                f"The model's chat template refused these messages: {error}", param="messages"
            ) from error

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """As far as the last message's last character: what comes next is more of that message.

        The template is rendered with a placeholder for that message's text, which the text then replaces: templates may
        strip or split texts, and the same text may occur again later.
        Raises ``InvalidRequest``.
        """
        *before, last = messages
        shown = self.render(
            [*before, {**last, "content": _PLACE}], tools, generation_prompt=False, variables=variables
        )
        opening, found, _ = shown.rpartition(_PLACE)
        if not found:
            raise InvalidRequest(
                "The model's chat template does not show the final message, so it cannot be continued.",
                param="continue_final_message",
            )
        if before:
            past, asked = (
                self.render(before, tools, generation_prompt=ask, variables=variables)
                for ask in (False, True)
            )
            if past != asked and opening.startswith(asked) and opening[len(asked) :].strip():
                # Past answers may be rendered with a prefix such as empty reasoning. This one began where the
                # generation prompt ends.
                opening = asked
        return opening + str(last["content"])

    def _joined(self, pieces: Iterator[str]) -> str:
        found, length = [], 0
        for piece in pieces:
            found.append(piece)
            length += len(piece)
            if self._longest is not None and length > self._longest:
                raise InvalidRequest(
                    f"The model's chat template makes more than {self._longest} characters of these messages.",
                    param="messages",
                )
        return "".join(found)


def _shown(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without a content gets ``Nothing``; reasoning gets all names that templates use for it."""
    if message.get("content") is None:
        message = {**message, "content": Nothing()}
    thought = next((found for name in THOUGHTS if (found := message.get(name)) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}
