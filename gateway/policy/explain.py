"""The schema's complaints in an operator's words."""

from __future__ import annotations

from pydantic_core import ErrorDetails

from gateway.policy.fields import kind_of, locate, models_in
from gateway.policy.problems import KeyPath, listed, suggestion
from gateway.policy.schema import Backend, Guard

_PLAIN_WORDS = {
    "missing": "is required, and missing",
    "model_type": "should be a mapping: {key: value}",
    "model_attributes_type": "should be a mapping: {key: value}",
    "dict_type": "should be a mapping: {name: {…}}",
    "tuple_type": "should be a list: [a, b]",
    "string_type": "should be text",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "too_short": "should have at least one entry",
}


def explain(details: ErrorDetails) -> tuple[KeyPath, str]:
    """Where pydantic's complaint belongs, and how an operator would put it."""
    path, owner = locate(details["loc"])
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden" if owner is not None:
            return path, f"unknown key{suggestion(str(path[-1]), tuple(owner.model_fields))}"
        case "union_tag_not_found":
            if not isinstance(details["input"], dict):
                return path, _PLAIN_WORDS["model_type"]
            return (*path, "kind"), f"is required, and missing; write one of {listed(_kinds(path))}"
        case "union_tag_invalid":
            tag = str(context.get("tag"))
            what = str(path[0]).removesuffix("s")
            return (*path, "kind"), f"'{tag}' is no kind of {what}{suggestion(tag, _kinds(path))}"
        case "value_error":
            return path, str(context.get("error"))
        case _ if details["input"] is None and details["type"] != "missing":
            return path, "has no value; write one, or remove the key"
        case known:
            message = details["msg"].removeprefix("Input ")
            return path, _PLAIN_WORDS.get(known, message[:1].lower() + message[1:])


def _kinds(path: KeyPath) -> tuple[str, ...]:
    union = Guard if path[0] == "guards" else Backend
    return tuple(kind for model in models_in(union) if (kind := kind_of(model)))
