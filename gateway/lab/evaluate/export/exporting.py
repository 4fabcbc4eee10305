"""From an evaluation to where it is looked at: a tool's URL, or a file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote

from gateway.lab.evaluate.errors import SetError
from gateway.lab.evaluate.export import csv_file, langfuse, langsmith, otel, phoenix
from gateway.lab.evaluate.export.experiment import Experiment
from gateway.lab.evaluate.export.receiver import Receiver

Tool = Literal["langfuse", "phoenix", "langsmith", "otel"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
_PUSH = {"langfuse": langfuse.push, "phoenix": phoenix.push, "langsmith": langsmith.push, "otel": otel.push}
_ENDINGS = {
    "langfuse": ("/api/public/otel", "/api/public"),
    "langsmith": ("/otel", "/api/v1"),
    "phoenix": ("/v1",),
    "otel": ("/v1/logs",),
}
"""What people have in such addresses, and need not."""


@dataclass(frozen=True, slots=True)
class Exporting:
    """``where`` is a URL, or a file."""

    tool: Tool
    where: str
    headers: Mapping[str, str]

    def run(self, found: Sequence[Experiment]) -> None:
        """Raises ``EvaluationError``, ``OSError``."""
        if self.is_file:
            write = otel.write if self.tool == "otel" else csv_file.write
            write(Path(self.where), found)
            return
        with Receiver(self.where, self.headers) as tool:
            _PUSH[self.tool](tool, found)

    @property
    def is_file(self) -> bool:
        return not self.where.startswith(("http://", "https://"))


def exporting(tool: Tool, where: str | None, data_set: Path, env: Mapping[str, str]) -> Exporting:
    """``where`` is a URL, a file, or beside the set. Keys come from the variables that the tools' own SDKs read.

    Raises ``SetError``.
    """
    if where is None:
        where = str(data_set.with_suffix(f".{tool}.{'jsonl' if tool == 'otel' else 'csv'}"))
    if not where.startswith(("http://", "https://")):
        return Exporting(tool, where, {})
    where = where.rstrip("/")
    for ending in _ENDINGS[tool]:
        where = where.removesuffix(ending)
    return Exporting(tool, where, _headers(tool, env))


def _headers(tool: Tool, env: Mapping[str, str]) -> dict[str, str]:
    match tool:
        case "langfuse":
            pair = _needed(env, "LANGFUSE_PUBLIC_KEY"), _needed(env, "LANGFUSE_SECRET_KEY")
            return {"authorization": f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}"}
        case "langsmith":
            return {"x-api-key": _needed(env, "LANGSMITH_API_KEY")}
        case "phoenix":
            key = env.get("PHOENIX_API_KEY", "")
            return {"authorization": f"Bearer {key}"} if key else {}
        case "otel":
            told = env.get("OTEL_EXPORTER_OTLP_HEADERS", "")
            parts = (one.partition("=") for one in told.split(",") if one.strip())
            return {name.strip().lower(): unquote(value.strip()) for name, _, value in parts}


def _needed(env: Mapping[str, str], name: str) -> str:
    if not (value := env.get(name, "")):
        raise SetError(f"--export-to: put the tool's key into the environment variable {name}")
    return value
