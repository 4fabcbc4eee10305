"""Reads recorded traffic, one request after the other: ``read_traffic``.

What a file holds is told by its columns or keys, row by row, not by its name:

- this gateway's own JSON lines (``tollgate record export``), the fields of ``RecordedRequest``;
- Azure's LLM inference traces (CSV) and Mooncake's (JSON lines): ``published.py``;
- LiteLLM's spend logs, as CSV, JSON or SQL: ``litellm.py``;
- requests in OpenAI's form, with or without their answers: ``openai.py``.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from gateway.lab.migration.dumps import DumpError, rows
from gateway.lab.traffic import litellm, openai, published
from gateway.recording.recorded_request import RecordedRequest

FORMS = (
    "traffic is CSV with TIMESTAMP, ContextTokens, GeneratedTokens (Azure); JSON lines with timestamp, input_length, "
    "output_length (Mooncake), with at, prompt_tokens, completion_tokens (one's own), or with requests to OpenAI's "
    "API; or LiteLLM's spend logs (CSV, JSON, SQL)"
)
_GZIP = b"\x1f\x8b"
_Numbered = Iterator[tuple[int, Mapping[str, Any]]]


class TrafficError(Exception):
    """It cannot be read; the message has file and line, and says what could be."""


def read_traffic(path: Path) -> Iterator[RecordedRequest]:
    """In the order of the file, which need not be that of time; of a folder all its files, by name; ``-`` is the input.

    Compressed (gzip) or not. Raises ``TrafficError``, while it is read.
    """
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        if not files:
            raise TrafficError(f"{path}: no file in it")
        for file in files:
            yield from _read_file(file)
    else:
        yield from _read_file(path)


def _read_file(path: Path) -> Iterator[RecordedRequest]:
    number, found = 0, False
    try:
        with _opened(path) as file:
            for number, row in _rows(file):
                yield _request(row, number)
                found = True
    except OSError as error:
        raise TrafficError(f"{path}: {error.strerror or error}") from None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        EOFError,
        csv.Error,
        DumpError,
    ) as error:
        told = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        line = f"{path}:{number if isinstance(error, _RowError) else number + 1}"
        raise TrafficError(f"{line}: {told}; {FORMS}") from None
    if not found:
        raise TrafficError(f"{path}: no requests in it; {FORMS}")


class _RowError(ValueError):
    """Of a row that was read, and not of the next."""


def _request(row: Mapping[str, Any], number: int) -> RecordedRequest:
    try:
        return _reader(row)(row, number)
    except KeyError as error:
        raise _RowError(f"there is no {error}") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise _RowError(str(error)) from None


def _reader(row: Mapping[str, Any]) -> Callable[[Mapping[str, Any], int], RecordedRequest]:
    if not isinstance(row, dict):
        raise TypeError("it is no object with keys")
    if "TIMESTAMP" in row:
        return published.azure
    if "input_length" in row:
        return published.mooncake
    if "startTime" in row:
        return litellm.spend_log
    if not openai.KEYS.isdisjoint(row):
        return openai.logged
    return published.own


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    with open(0, "rb", closefd=False) if str(path) == "-" else path.open("rb") as binary:
        zipped = binary.peek(2)[:2] == _GZIP
        content = gzip.GzipFile(fileobj=binary) if zipped else binary
        yield io.TextIOWrapper(content, encoding="utf-8-sig", newline="")


def _rows(file: IO[str]) -> _Numbered:
    """Rows, and the line on which each ends; of what is read at once, which row it is."""
    number, first = 0, ""
    for number, first in enumerate(file, 1):  # noqa: B007
        if first.strip():
            break
    start = first.lstrip()
    if start.startswith("{") and start.rstrip().endswith("}"):
        return _json_lines(first, file, number)
    if start.startswith(("{", "[", "--", "COPY ", "INSERT ", "SET ", "\\")):
        return ((number, row) for row in rows(first + file.read()))
    return _csv_rows(first, file, number)


def _json_lines(first: str, file: IO[str], number: int) -> _Numbered:
    yield number, orjson.loads(first)
    for at, line in enumerate(file, number + 1):
        if line.strip():
            try:
                yield at, orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"it is not JSON: {error}") from None


def _csv_rows(first: str, file: IO[str], number: int) -> _Numbered:
    names = next(csv.reader([first]), [])
    reader = csv.DictReader(file, fieldnames=names, restval="")
    for row in reader:
        yield number + reader.line_num, row
