"""Recorded arrivals: the times and lengths of requests that were once made.

Azure's LLM inference traces are CSV (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake's JSON lines (timestamp in
milliseconds, input_length, output_length, and hash_ids, one for each 512 tokens of the prompt: two prompts that begin
with the same ids begin with the same text). One's own may be JSON lines, too: at in seconds, prompt_tokens,
output_tokens, and, where prefixes matter, hash_ids.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from gateway.lab.bench.errors import OptionError

BLOCK = 512
"""Tokens for which one hash id stands."""

_Row = Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Arrival:
    """``at``: seconds since the first."""

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: Path, *, speed: float = 1.0, length_scale: float = 1.0) -> list[Arrival]:
    """In order of time, from 0 on. ``speed`` 2 lets it pass in half the time. Raises ``OptionError``."""
    rows: list[Arrival] = []
    number = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in _json_rows(file) if path.suffix == ".jsonl" else _csv_rows(file):  # noqa: B007
                rows.append(_arrival(orjson.loads(row) if isinstance(row, str) else row))
    except OSError as error:
        raise OptionError(f"--trace: {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, csv.Error) as error:
        raise OptionError(
            f"--trace: {path}:{number + 1}: {_told(error)}; a trace is CSV with TIMESTAMP, ContextTokens and "
            "GeneratedTokens, or a .jsonl file with timestamp (ms), input_length and output_length, or at (s), "
            "prompt_tokens and output_tokens"
        ) from None
    if not rows:
        raise OptionError(f"--trace: {path}: no requests in it")
    rows.sort(key=lambda row: row.at)
    first = rows[0].at
    return [
        replace(
            row,
            at=(row.at - first) / speed,
            prompt_tokens=max(1, round(row.prompt_tokens * length_scale)),
            output_tokens=max(1, round(row.output_tokens * length_scale)),
        )
        for row in rows
    ]


def _csv_rows(file: Iterator[str]) -> Iterator[tuple[int, _Row]]:
    reader = csv.DictReader(file)
    for row in reader:
        yield reader.line_num - 1, row


def _json_rows(file: Iterator[str]) -> Iterator[tuple[int, _Row]]:
    return ((number, line) for number, line in enumerate(file) if line.strip())


def _arrival(row: Mapping[str, Any]) -> Arrival:
    if "TIMESTAMP" in row:
        # Seven digits of a second; datetime reads six.
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC).timestamp()
        found = Arrival(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
    elif "input_length" in row:
        blocks = tuple(map(int, row.get("hash_ids", ())))
        found = Arrival(
            float(row["timestamp"]) / 1000, int(row["input_length"]), int(row["output_length"]), blocks
        )
    else:
        blocks = tuple(map(int, row.get("hash_ids", ())))
        found = Arrival(float(row["at"]), int(row["prompt_tokens"]), int(row["output_tokens"]), blocks)
    if found.prompt_tokens < 0 or found.output_tokens < 0:
        raise ValueError("a length below nothing")
    return found


def _told(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)
