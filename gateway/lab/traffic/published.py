"""Traces that others published, and traces of one's own with no more than they have.

Azure's LLM inference traces (https://github.com/Azure/AzurePublicDataset) are CSV: TIMESTAMP, ContextTokens,
GeneratedTokens. Mooncake's (https://github.com/kvcache-ai/Mooncake) are JSON lines: timestamp in milliseconds,
input_length, output_length, and hash_ids, one for each 512 tokens of the prompt, of which the last may be begun only:
two prompts that begin with the same ids begin with the same text.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.recording.recorded_request import RecordedRequest

MOONCAKE_BLOCK = 512


def azure(row: Mapping[str, Any], _number: int) -> RecordedRequest:
    return RecordedRequest(
        at=_time(row["TIMESTAMP"]),
        prompt_tokens=_length(row["ContextTokens"]),
        completion_tokens=_length(row["GeneratedTokens"]),
    )


def mooncake(row: Mapping[str, Any], _number: int) -> RecordedRequest:
    blocks = tuple(map(int, row.get("hash_ids", ())))
    return RecordedRequest(
        at=float(row["timestamp"]) / 1000,
        prompt_tokens=_length(row["input_length"]),
        completion_tokens=_length(row["output_length"]),
        blocks=blocks,
        block_tokens=MOONCAKE_BLOCK if blocks else 0,
    )


def own(row: Mapping[str, Any], _number: int) -> RecordedRequest:
    """``output_tokens`` and ``hash_ids`` are read, too, as short traces for ``tollgate bench`` have them."""
    if "output_tokens" not in row and "hash_ids" not in row:
        return RecordedRequest.from_json(row)
    renamed = {_OTHER.get(name, name): value for name, value in row.items()}
    if renamed.get("blocks") and "block_tokens" not in renamed:
        renamed["block_tokens"] = MOONCAKE_BLOCK
    return RecordedRequest.from_json(renamed)


_OTHER = {"output_tokens": "completion_tokens", "hash_ids": "blocks"}


def _time(text: str) -> float:
    """Azure's has seven digits of a second, of which ``datetime`` reads six, and of later traces an offset."""
    whole, _, rest = text.partition(".")
    digits = rest[:6] if rest[:1].isdigit() else ""
    offset = rest.lstrip("0123456789")
    moment = datetime.fromisoformat(f"{whole}{f'.{digits:0<6}' if digits else ''}{offset}")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _length(value: Any) -> int:
    length = int(value)
    if length < 0:
        raise ValueError("a length below nothing")
    return length
