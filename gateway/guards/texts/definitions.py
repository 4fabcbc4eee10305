"""What definitions of tools, schemas and parameters say: their prose, and the names in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.errors import BadRequest
from gateway.guards.texts.paths import DEEPEST, Path
from gateway.types import Json

_DESCRIBING = frozenset(
    ("description", "title", "default", "const", "enum", "example", "examples", "$comment")
)
"""Of JSON Schema's keywords (draft 2020-12, validation, section 9), those whose values are prose, be they one word."""
_IDENTIFIER = re.compile(r"[\w$.#/:@-]{0,64}", re.ASCII)
_COMMON = frozenset(
    {
        *(
            "type",
            "function",
            "name",
            "parameters",
            "strict",
            "json_schema",
            "schema",
            "custom",
            "format",
            "grammar",
        ),
        *(
            "object",
            "string",
            "number",
            "integer",
            "boolean",
            "array",
            "null",
            "properties",
            "required",
            "items",
        ),
        *(
            "additionalProperties",
            "anyOf",
            "oneOf",
            "allOf",
            "not",
            "$ref",
            "$defs",
            "definitions",
            "$schema",
            "$id",
        ),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "pattern"),
        *(
            "input_schema",
            "input_examples",
            "cache_control",
            "ephemeral",
            "text",
            "json_object",
            "auto",
            "none",
        ),
        *_DESCRIBING,
    }
)
"""Keywords, and values of theirs, that tell nobody anything."""
_CREDENTIALS = frozenset({"authorization", "authorization_token", "headers"})
"""Of the definition of a remote (MCP) server: what its provider needs to reach it, and no model sees."""
_REFERENCES = frozenset({"$schema", "$ref", "$id"})
_NAME = re.compile(r"[\w-]+", re.ASCII)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_a-zA-Z]+")
_JOINTS = str.maketrans("_-", "  ")
_MAY_TELL = re.compile(r"@|\d(?:\D?\D?\d){8}")
"""Of somebody: an address, or nine digits and more, in groups or not."""
_SENTENCE = 5
"""Words of a name that is read as a sentence, too: ``send_all_files_to_the_admin``."""


class Definitions:
    """Of several definitions. ``prose`` has texts that may be changed, ``names`` what must stay as it is."""

    def __init__(self) -> None:
        self.prose: list[tuple[Path, str]] = []
        self.names: dict[str, None] = {}

    def read(self, path: Path, value: Json, *, prose: bool = False) -> None:
        """Of a schema, all strings but single words. With ``prose`` these too; keys are names.

        Raises ``BadRequest`` for what is nested too deeply.
        """
        if len(path) > DEEPEST:
            raise BadRequest(f"'{path[1]}' has more than {DEEPEST} levels.", param=str(path[1]))
        if isinstance(value, str):
            if prose or not _IDENTIFIER.fullmatch(value):
                self.prose.append((path, value))
            else:
                self._name(value)
        elif isinstance(value, Mapping):
            is_server = value.get("type") == "mcp"
            named = bool(path) and path[-1] == "properties"
            for key, one in value.items():
                if (is_server and key in _CREDENTIALS) or (
                    key in _REFERENCES and isinstance(one, str) and _IDENTIFIER.fullmatch(one)
                ):
                    continue
                self._name(key)
                self.read((*path, key), one, prose=prose or (not named and key in _DESCRIBING))
        elif isinstance(value, list):
            for i, one in enumerate(value):
                self.read((*path, i), one, prose=prose)

    def _name(self, name: str) -> None:
        if name and name not in _COMMON:
            self.names[name] = None

    @property
    def spoken(self) -> list[str]:
        """Names of one word in which an address or a number may lie, with spaces for what hides where it begins."""
        told = ((name, name.translate(_JOINTS)) for name in self.names if _MAY_TELL.search(name))
        return [spoken for name, spoken in told if spoken != name]

    @property
    def sentences(self) -> list[str]:
        """Names that are sentences: with spaces between their words, or as they are if they are no identifiers."""
        split = (_WORDS.findall(name) for name in self.names if _NAME.fullmatch(name))
        return [
            *(" ".join(words).lower() for words in split if len(words) >= _SENTENCE),
            *(name for name in self.names if not _IDENTIFIER.fullmatch(name) and not _NAME.fullmatch(name)),
        ]
