"""Recorded streams of Bedrock's, in Amazon's frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from benchmarks.conformance.providers.bedrock_frames import event

RECORDED = Path(__file__).parents[3] / "recorded" / "bedrock"


def recorded(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream."""
    lines = map(orjson.loads, (RECORDED / f"{name}.jsonl").read_bytes().splitlines())
    return [(line["event"], line["payload"]) for line in lines]


def stream_of(name: str) -> bytes:
    return b"".join(event(kind, payload) for kind, payload in recorded(name))
