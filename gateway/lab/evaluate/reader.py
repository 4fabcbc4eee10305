"""Reads a set: JSON lines, a case each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.extras import install_command
from gateway.lab.evaluate.case import Case, Check, Rubric, Similar
from gateway.lab.evaluate.checks import CallsNoTool, CallsTool, Exact, FollowsSchema, IsNumber, Matches
from gateway.lab.evaluate.errors import SetError

_KEYS = ("id", "prompt", "messages", "params", "task", "reference", "checks")
_ABSENT: Any = object()


def read_set(path: Path) -> list[Case]:
    """Raises ``SetError``, which names the file and the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SetError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    cases: dict[str, Case] = {}
    # Not splitlines: U+2028 may stand within a JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            case = _case(json.loads(line), f"case-{number}")
        except RecursionError:
            raise SetError(f"{path}:{number}: is nested too deeply") from None
        except ValueError as error:
            raise SetError(f"{path}:{number}: {error}") from None
        if case.id in cases:
            raise SetError(
                f"{path}:{number}: 'id': there is another case '{case.id}'; ids are one case's own"
            )
        cases[case.id] = case
    if not cases:
        raise SetError(f"{path}: there is no case in it; each line is one, as docs/lab.md shows")
    return list(cases.values())


def _case(line: Any, name: str) -> Case:
    if not isinstance(line, dict):
        raise ValueError("a case is a JSON object")
    fields = _Fields(line)
    fields.only(*_KEYS)
    messages = fields.get("messages", list, None)
    prompt = fields.get("prompt", str, None)
    if (messages is None) == (prompt is None):
        raise ValueError("give either 'prompt' (a text) or 'messages' (as chat completions have them)")
    if messages is None:
        messages = [{"role": "user", "content": prompt}]
    if not messages or not all(isinstance(one, dict) for one in messages):
        raise ValueError("'messages': one object or more, as chat completions have them")
    params = fields.get("params", dict, {})
    if taken := params.keys() & {"model", "messages", "stream", "n"}:
        raise ValueError(f"'params': {', '.join(sorted(taken))} cannot stand there")
    checks = fields.get("checks", list)
    if not checks:
        raise ValueError("'checks': at least one, or no answer could be wrong")
    return Case(
        id=fields.get("id", str, name),
        body={**params, "messages": messages},
        checks=tuple(_check(one, place) for place, one in enumerate(checks, start=1)),
        task=fields.get("task", str, ""),
        reference=fields.get("reference", str, ""),
    )


def _check(check: Any, place: int) -> Check:
    try:
        if not isinstance(check, dict):
            raise ValueError("is an object")
        kinds = [name for name in check if name in _READERS]
        if len(kinds) != 1:
            raise ValueError(f"has one of {', '.join(_READERS)}")
        return _READERS[kinds[0]](_Fields(check))
    except ValueError as error:
        raise ValueError(f"'checks', the {place}.: {error}") from None


class _Fields:
    """An object's values, by type."""

    def __init__(self, line: Mapping[str, Any]) -> None:
        self._line = line

    def only(self, *names: str) -> None:
        if odd := [name for name in self._line if name not in names]:
            raise ValueError(f"there is no {odd[0]!r}; there is {', '.join(names)}")

    def get(self, name: str, kind: Any, default: Any = _ABSENT) -> Any:
        value = self._line.get(name, default)
        if value is _ABSENT:
            raise ValueError(f"'{name}' is missing")
        if value is default:
            return value
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"'{name}': not {_NAMES[kinds[0]]}")
        return value


_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a number", bool: "true or false"}


def _exact(fields: _Fields) -> Check:
    fields.only("exact", "ignore_case")
    return Exact(fields.get("exact", str), fields.get("ignore_case", bool, False))


def _regex(fields: _Fields) -> Check:
    fields.only("regex")
    try:
        return Matches(re.compile(fields.get("regex", str)))
    except re.error as error:
        raise ValueError(f"'regex': {error}") from None


def _schema(fields: _Fields) -> Check:
    fields.only("json_schema")
    return FollowsSchema(_validator(fields.get("json_schema", dict)))


def _validator(schema: Mapping[str, Any]) -> Callable[[Any], str | None]:
    """Raises ``SetError`` where the library is missing, ``ValueError`` where it is no schema."""
    try:
        import jsonschema
    except ImportError:
        raise SetError(f"checks by JSON Schema need a library: {install_command('evaluate')}") from None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"'json_schema': {error.message}") from None
    validator = kind(schema)

    def wrong(value: Any) -> str | None:
        error = next(iter(validator.iter_errors(value)), None)
        return None if error is None else f"{error.json_path}: {error.message}"

    return wrong


def _tool_call(fields: _Fields) -> Check:
    fields.only("tool_call")
    if fields.get("tool_call", (dict, bool)) is False:
        return CallsNoTool()
    wanted = fields.get("tool_call", dict)
    call = _Fields(wanted)
    call.only("name", "arguments", "partial")
    return CallsTool(
        call.get("name", str), call.get("arguments", dict, None), call.get("partial", bool, False)
    )


def _number(fields: _Fields) -> Check:
    fields.only("number", "tolerance", "relative")
    tolerance, relative = (fields.get(name, (int, float), 0) for name in ("tolerance", "relative"))
    if tolerance < 0 or relative < 0:
        raise ValueError("'tolerance' and 'relative' are not negative")
    return IsNumber(float(fields.get("number", (int, float))), tolerance, relative)


def _similar(fields: _Fields) -> Check:
    fields.only("similar", "at_least")
    least = fields.get("at_least", (int, float), 0.8)
    if not 0 < least <= 1:
        raise ValueError("'at_least': a cosine, above 0 and not above 1")
    return Similar(fields.get("similar", str), float(least))


def _judge(fields: _Fields) -> Check:
    fields.only("judge", "at_least")
    least = fields.get("at_least", int, 4)
    if not 2 <= least <= 5:
        raise ValueError("'at_least': of five points, from 2 to 5")
    return Rubric(fields.get("judge", str), least)


_READERS: Mapping[str, Callable[[_Fields], Check]] = {
    "exact": _exact,
    "regex": _regex,
    "json_schema": _schema,
    "tool_call": _tool_call,
    "number": _number,
    "similar": _similar,
    "judge": _judge,
}


def needs(cases: list[Case]) -> Iterator[str]:
    """The options that the set's checks need: ``judge``, ``embedder``."""
    checks = [check for case in cases for check in case.checks]
    if any(isinstance(check, Rubric) for check in checks):
        yield "judge"
    if any(isinstance(check, Similar) for check in checks):
        yield "embedder"
