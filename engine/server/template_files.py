"""Where checkpoints keep their chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelUnavailable


@dataclass(frozen=True, slots=True)
class Templates:
    """Sources in Jinja."""

    default: str
    tool_use: str | None = None
    """For conversations with tools, if separate."""

    @property
    def with_tools(self) -> str:
        return self.tool_use or self.default


def read_templates(folder: Path, settings: Mapping[str, Any]) -> Templates | None:
    """From chat_template.jinja and additional_chat_templates/tool_use.jinja, else from ``settings``, the contents of
    tokenizer_config.json, which may have several by name. ``None`` if the model has none.

    Raises ``ModelUnavailable`` if they cannot be read.
    """
    named = _in_settings(settings)
    # Files take precedence over settings, each separately.
    for name, place in (
        ("default", "chat_template.jinja"),
        ("tool_use", "additional_chat_templates/tool_use.jinja"),
    ):
        if (file := folder / place).is_file():
            named = {} if name == "default" else named
            try:
                named[name] = file.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ModelUnavailable(f"{file} cannot be read: {error}.") from error
    default, tool_use = named.get("default"), named.get("tool_use")
    if not (default or tool_use):
        return None
    return Templates(default or tool_use or "", tool_use)


def _in_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    found = settings.get("chat_template")
    if isinstance(found, list):
        entries = [entry for entry in found if isinstance(entry, Mapping)]
        found = {entry.get("name"): entry.get("template") for entry in entries}
    named = dict(found) if isinstance(found, Mapping) else {"default": found}
    kept = {name: source for name in ("default", "tool_use") if (source := named.get(name)) is not None}
    if not all(isinstance(source, str) for source in kept.values()):
        raise ModelUnavailable("The model's chat template in tokenizer_config.json is no text.")
    return kept
