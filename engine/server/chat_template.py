"""Messages → one prompt, by the model's own Jinja template, in a sandbox.

Templates come with checkpoints in the form that Hugging Face describes
(https://huggingface.co/docs/transformers/chat_templating): they may loop, and call ``raise_exception`` and
``strftime_now``. The sandbox keeps them from reaching out, not from taking all there is: ``renderer.py`` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidRequest, ModelUnavailable

_PLACE = "\ue000\ue001\ue002"
"""Stands for an unfinished answer while the template is rendered: three signs that mean nothing to anybody."""

_REFUSALS = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RuntimeError,
)
"""What a template may raise over messages that it was not made for."""


class ChatTemplate:
    def __init__(self, source: str, *, bos: str | None, eos: str | None, longest: int | None = None) -> None:
        """``longest``: most characters of a prompt. Raises ``ModelUnavailable`` if the source is not valid Jinja."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except (*_REFUSALS, SyntaxError) as error:
            # Python's own compiler has the last word: on blocks that nest too deeply, say.
            raise ModelUnavailable(f"The model's chat template does not parse: {error}.") from error
        self._longest = longest
        self._tokens = {"bos_token": bos or "", "eos_token": eos or ""}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation_prompt: bool = True,
    ) -> str:
        """Raises ``InvalidRequest`` when the template will not have these messages."""
        try:
            return self._joined(
                self._template.generate(
                    messages=messages, tools=tools, add_generation_prompt=generation_prompt, **self._tokens
                )
            )
        except _REFUSALS as error:
            raise InvalidRequest(
                f"The model's chat template refused these messages: {error}", param="messages"
            ) from error

    def render_open(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """As far as the last message's last character: what comes next is more of that message.

        The template is rendered with a stand-in for that message's text, and the text is put in its place: templates
        strip texts or take them apart, and the text may well occur again behind itself, in a marker say.
        Raises ``InvalidRequest``.
        """
        *before, last = messages
        shown = self.render([*before, {**last, "content": _PLACE}], tools, generation_prompt=False)
        opening, found, _ = shown.rpartition(_PLACE)
        if not found:
            raise InvalidRequest(
                "The model's chat template does not show the final message, so it cannot be continued.",
                param="continue_final_message",
            )
        if before:
            past, asked = (self.render(before, tools, generation_prompt=ask) for ask in (False, True))
            if past != asked and opening.startswith(asked) and opening[len(asked) :].strip():
                # Past answers are written with more than the model was asked for, such as an empty thought. This one
                # began where the generation prompt ends.
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


def read_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template's source from chat_template.jinja or tokenizer_config.json; None if the model has none.

    Raises ``ModelUnavailable`` if it cannot be read.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"{file} cannot be read: {error}.") from error
    found = settings.get("chat_template")
    if isinstance(found, list):
        # Several named templates: the default one is meant for conversation.
        entries = [entry for entry in found if isinstance(entry, Mapping)]
        found = {entry.get("name"): entry.get("template") for entry in entries}.get("default")
    if found is not None and not isinstance(found, str):
        raise ModelUnavailable("The model's chat template in tokenizer_config.json is no text.")
    return found


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes for HTML, which a prompt is not.
    return json.dumps(value, ensure_ascii=False, indent=indent)
