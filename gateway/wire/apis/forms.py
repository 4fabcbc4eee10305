"""OpenAI's APIs that take a form: ``/audio/transcriptions``, ``/audio/translations`` and ``/images/edits``
(https://platform.openai.com/docs/api-reference/audio/createTranscription, /images/createEdit)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.apis import Api, Form
from gateway.errors import BadRequest
from gateway.types import ChatRequest, Json

FILES: Mapping[Api, tuple[str, ...]] = {
    "transcription": ("file",),
    "translation": ("file",),
    "image_edit": ("image", "image[]"),
}
"""What the file is called without which nothing can be asked."""
_LISTS = frozenset(
    {
        *("include", "keywords", "known_speaker_names", "known_speaker_references", "languages"),
        "timestamp_granularities",
    }
)
"""Fields that may come more than once, with or without brackets; of any other, servers would take this or that one."""
_SOUND = "known_speaker_references"
_MOST = {"n": 100, "partial_images": 100}


File = Annotated[str, Field(json_schema_extra={"format": "binary"})]


class TranscriptionForm(BaseModel):
    """A form; other fields are sent on."""

    model_config = ConfigDict(extra="allow")
    file: File
    model: str
    language: str | None = None
    prompt: str | None = None
    response_format: str | None = None
    stream: bool | None = None


class ImageEditForm(BaseModel):
    """A form; other fields are sent on."""

    model_config = ConfigDict(extra="allow")
    image: File
    model: str
    prompt: str
    mask: File | None = None


def read_form(
    api: Api, form: Form, texts: Mapping[str, Sequence[str]], files: Sequence[str], model: str | None = None
) -> ChatRequest:
    """``texts`` and ``files`` are the names of its parts, with values of texts; ``model`` is one that the path names.

    Raises ``BadRequest``.
    """
    for name, values in texts.items():
        if len(values) > 1 and not name.endswith("[]") and name not in _LISTS:
            raise BadRequest(
                f"The form has '{name}' more than once. Send it once.", param=name, code="invalid_value"
            )
    model = model or _only(texts, "model")
    prompt = _only(texts, "prompt")
    wanted = FILES[api]
    if not any(name in wanted for name in files):
        raise _missing(wanted[0], " as a file, with a filename")
    if api != "image_edit" and len(files) > 1:
        raise BadRequest(
            "The form has more than one file. Send one in each request.", param="file", code="invalid_value"
        )
    if not model:
        raise _missing("model")
    if api == "image_edit" and not prompt:
        raise _missing("prompt")
    for name, most in _MOST.items():
        given = _only(texts, name)
        if given is not None and not (
            given.isascii() and given.isdigit() and len(given) < 5 and int(given) <= most
        ):
            raise BadRequest(
                f"'{name}' should be a whole number up to {most}.", param=name, code="invalid_value"
            )
    return ChatRequest(
        model=model,
        prompt=prompt or "",
        stream=(_only(texts, "stream") or "").lower() in ("true", "1"),
        params={name: _value(values) for name, values in texts.items() if _is_setting(name)},
        api=api,
        form=form,
    )


def _only(texts: Mapping[str, Sequence[str]], name: str) -> str | None:
    return texts[name][0] if name in texts else None


def _is_setting(name: str) -> bool:
    return name not in ("model", "prompt") and name.removesuffix("[]") != _SOUND


def _value(values: Sequence[str]) -> Json:
    return [*values] if len(values) > 1 else values[0]


def _missing(name: str, how: str = "") -> BadRequest:
    return BadRequest(
        f"Missing required parameter: '{name}'. Send it as a part of the form{how}.",
        param=name,
        code="missing_required_parameter",
    )
