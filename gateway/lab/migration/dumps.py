"""Rows of another gateway's database: CSV with a header, JSON, or what ``pg_dump`` writes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

Row = dict[str, Any]
_COPY = re.compile(r'^COPY (?:"?\w+"?\.)?"?(\w+)"? \(([^)]*)\) FROM stdin;$')
_INSERT = re.compile(r'^INSERT INTO (?:"?\w+"?\.)?"?(\w+)"?\s*(?:\(([^)]*)\))?\s*VALUES\s*(.*)$', re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class DumpError(Exception):
    """It is none, or in no form that is read."""


def rows(text: str) -> Iterator[Row]:
    """All rows, of whichever table. Raises ``DumpError``."""
    start = text.lstrip("\ufeff \r\n\t")
    if start.startswith(("{", "[")):
        yield from _json_rows(start)
    elif re.search(r"^(COPY|INSERT INTO) ", text, re.MULTILINE):
        yield from _sql_rows(text)
    elif "," in start.partition("\n")[0]:
        for row in csv.DictReader(StringIO(start)):
            yield {name: _value(value) for name, value in row.items() if name is not None}
    else:
        raise DumpError("is neither JSON, nor CSV with a header, nor SQL with COPY or INSERT lines")


def _json_rows(text: str) -> Iterator[Row]:
    """A list, an object with one (``{"keys": [...]}``, as ``/key/list`` answers), or an object a line."""
    try:
        content = json.loads(text)
    except ValueError:
        try:
            content = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise DumpError(f"is not JSON: {error}") from None
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = (
            [one for listed in lists for one in listed] if lists and "token" not in content else [content]
        )
    yield from (one for one in content if isinstance(one, dict))


def _sql_rows(text: str) -> Iterator[Row]:
    lines = iter(text.splitlines())
    for line in lines:
        if copy := _COPY.match(line):
            columns = _columns(copy[2])
            for row in lines:
                if row == "\\.":
                    break
                yield dict(zip(columns, (_copied(value) for value in row.split("\t")), strict=False))
        elif line.startswith("INSERT INTO "):
            statement = line
            while not statement.rstrip().endswith(";"):
                more = next(lines, None)
                if more is None:
                    break
                statement += f"\n{more}"
            insert = _INSERT.match(statement)
            if insert is None or insert[2] is None:
                raise DumpError(
                    "has INSERT lines without columns: dump with --column-inserts, or without --inserts"
                )
            columns = _columns(insert[2])
            for values in _tuples(insert[3]):
                yield dict(zip(columns, values, strict=False))


def _columns(listed: str) -> list[str]:
    return [name.strip().strip('"') for name in listed.split(",")]


def _copied(text: str) -> Any:
    if text == "\\N":
        return None
    return _value(re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text))


def _tuples(text: str) -> Iterator[list[Any]]:
    """The values of ``(1, 'a'), (NULL, ARRAY['x'])``."""
    token = re.compile(
        r"\s*(E?'(?:[^'\\]|''|\\.)*'(?:::[\w\[\] \"]+)?|ARRAY\[[^\]]*\](?:::[\w\[\]]+)?|[^,()\s]+)\s*([,)])"
    )
    position = 0
    while (start := text.find("(", position)) >= 0:
        position, values = start + 1, []
        while match := token.match(text, position):
            position = match.end()
            values.append(_literal(match[1]))
            if match[2] == ")":
                break
        else:
            return
        yield values


def _literal(text: str) -> Any:
    if text.upper() == "NULL":
        return None
    if text.startswith("ARRAY["):
        return re.findall(r"'((?:[^']|'')*)'", text)
    if quoted := re.match(r"E?'((?:[^'\\]|''|\\.)*)'", text):
        return _value(quoted[1].replace("''", "'"))
    return _value(text)


def _value(text: str | None) -> Any:
    """What PostgreSQL writes as text: truth, arrays (``{a,"b c"}``), JSON."""
    if text is None or text == "":
        return None
    if text in ("t", "true", "True"):
        return True
    if text in ("f", "false", "False"):
        return False
    if (text[0] == "{" and text[-1] == "}" and not text.startswith(('{"', "{}"))) or (
        text.startswith('{"') and '":' not in text
    ):
        return next(csv.reader([text[1:-1]], escapechar="\\"), [])
    if text[0] in "{[" and text[-1] in "}]":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
