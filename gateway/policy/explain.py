"""Validation errors of the schema as messages for operators."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.policy.fields import kind_of, locate, models_in
from gateway.policy.problems import KeyPath, listed, suggestion
from gateway.policy.schema import Backend, Guard, Policy
from gateway.policy.yaml_tree import typed

_MESSAGES = {
    "missing": "is required, and missing",
    "model_type": "should be a mapping: {key: value}",
    "model_attributes_type": "should be a mapping: {key: value}",
    "dict_type": "should be a mapping: {name: {…}}",
    "tuple_type": "should be a list: [a, b]",
    "string_type": "should be text",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "too_short": "should have at least one entry",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_parsing_size": "should be a smaller number",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "finite_number": "should be a number",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "should be {} or more"),
    "greater_than": ("gt", "should be more than {}"),
    "less_than_equal": ("le", "should be {} or less"),
    "less_than": ("lt", "should be less than {}"),
}


def explain(details: ErrorDetails, whole: type[BaseModel] = Policy) -> tuple[KeyPath, str]:
    """The key path of a pydantic error in a file of the type ``whole``, and a message for the operator."""
    path, owner = locate(details["loc"], whole)
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden" if owner is not None:
            return path, f"unknown key{_meant(str(path[-1]), tuple(owner.model_fields), details['input'])}"
        case "union_tag_not_found":
            if not isinstance(details["input"], dict):
                return path, _MESSAGES["model_type"]
            return (*path, "kind"), f"is required, and missing; write one of {listed(_kinds(path))}"
        case "union_tag_invalid":
            tag = str(context.get("tag"))
            what = str(path[0]).removesuffix("s")
            return (*path, "kind"), f"'{tag}' is not a kind of {what}{suggestion(tag, _kinds(path))}"
        case "value_error":
            return path, str(context.get("error"))
        case _ if details["input"] is None and details["type"] != "missing":
            return path, "has no value; write one, or remove the key"
        case bound if bound in _BOUNDS:
            name, message = _BOUNDS[bound]
            return path, message.format(f"{context[name]:g}")
        case "int_type" | "float_type" if _quoted(details["input"]):
            return path, f"{_MESSAGES[details['type']]}, without quotes"
        case known:
            message = details["msg"].removeprefix("Input ")
            return path, _MESSAGES.get(known, message[:1].lower() + message[1:])


def _quoted(value: object) -> bool:
    """Whether it is a number in quotes."""
    return isinstance(value, str) and not isinstance(typed(value), str | bool)


def _meant(key: str, known: tuple[str, ...], value: object) -> str:
    """What an unknown key may have been meant to be."""
    name, colon, rest = key.partition(":")
    if colon and rest and name in known:
        return f"; put a space after the colon: '{name}: {rest}'"
    if value is None and key.isdigit():
        return "; write numbers without commas: 1000, not 1,000"
    return suggestion(key, known)


def _kinds(path: KeyPath) -> tuple[str, ...]:
    union = Guard if path[0] == "guards" else Backend
    return tuple(kind for model in models_in(union) if (kind := kind_of(model)))
