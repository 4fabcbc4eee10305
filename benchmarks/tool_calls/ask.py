"""One row of the sets as a request, and how its answer is judged."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.tool_calls.judge import matches, right_calls
from benchmarks.tool_calls.schema import fits

FOLDER = Path(__file__).parent
MAX_TOKENS = 256
MARKER = "<tool_call>"


@dataclass(frozen=True, slots=True)
class Judged:
    kind: str
    valid: bool
    """Calls are of offered tools and fit their schemas; JSON fits its schema."""
    right: bool
    seconds: float
    tokens: int
    finish: str
    shown: str
    """The answer, to read."""


class Server:
    """A model's answers. Where a file is given they are kept in it, and what it has is not asked again."""

    def __init__(
        self,
        client: httpx.Client,
        model: str,
        kept: Path | None = None,
        *,
        system: str | None = None,
        another_call: float | None = None,
        strict: bool = False,
    ) -> None:
        """``system``: a system message of conversations. ``another_call``: what is added to the logit of the marker of
        calls where several are required. ``strict``: of each tool."""
        self._client, self._model, self._kept = client, model, kept
        self._system, self._another_call, self._strict = system, another_call, strict
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}
        if kept is not None and kept.exists():
            for line in kept.read_text(encoding="utf-8").splitlines():
                asked, *found = json.loads(line)
                self._known[asked] = (found[0], found[1])

    def ask(self, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Seconds and the answer."""
        body = {"model": self._model, "temperature": 0, "max_tokens": MAX_TOKENS, **body}
        asked = json.dumps(body, sort_keys=True)
        if asked not in self._known:
            began = time.perf_counter()
            answer = self._client.post("/v1/chat/completions", json=body)
            seconds = time.perf_counter() - began
            if answer.is_error:
                raise RuntimeError(f"{answer.status_code}: {answer.text[:500]}")
            self._known[asked] = seconds, answer.json()
            if self._kept is not None:
                with self._kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([asked, *self._known[asked]], ensure_ascii=False) + "\n")
        return self._known[asked]

    def messages(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return [*([{"role": "system", "content": self._system}] if self._system else []), *row["messages"]]

    def offered(self, tool: dict[str, Any]) -> dict[str, Any]:
        return {**tool, "function": {**tool["function"], "strict": True}} if self._strict else tool

    def several(self) -> dict[str, Any]:
        """What asks for more than one call. Raises ``RuntimeError`` where the marker is no token."""
        asked: dict[str, Any] = {"parallel_tool_calls": True}
        if self._another_call is not None:
            given = {"model": self._model, "prompt": MARKER, "add_special_tokens": False}
            tokens = self._client.post("/tokenize", json=given).json()["tokens"]
            if len(tokens) != 1:
                raise RuntimeError(f"{MARKER} is no token of this model: leave --another-call out")
            asked["logit_bias"] = {str(tokens[0]): self._another_call}
        return asked


def rows(name: str) -> list[dict[str, Any]]:
    with (FOLDER / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def conversation(server: Server, row: dict[str, Any], tools: dict[str, Any], choice: str) -> Judged:
    offered = [server.offered(tools[name]) for name in row["tools"]]
    body = {"messages": server.messages(row), "tools": offered, "tool_choice": choice}
    if choice == "required" and row["kind"] == "several":
        body |= server.several()
    seconds, found = server.ask(body)
    message = found["choices"][0]["message"]
    schemas = {name: tools[name]["function"]["parameters"] for name in row["tools"]}
    calls, valid = [], True
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], _json(call["function"]["arguments"])
        valid = valid and name in schemas and _fits(arguments, schemas[name])
        calls.append((name, arguments))
    text = message.get("content") or ""
    right = right_calls(calls, row["calls"])
    if not row["calls"]:
        # Text that looks like a call is none of the answers that are wanted.
        right = right and bool(text.strip()) and '"arguments"' not in text
    right = right and all(word.casefold() in text.casefold() for word in row.get("says", ()))
    shown = json.dumps(calls, ensure_ascii=False, default=lambda _: "(no JSON)") if calls else text
    return _judged(row["kind"], valid, right, seconds, found, shown)


def form(server: Server, row: dict[str, Any]) -> Judged:
    schema = row["schema"]
    # Not "strict": its rules (every property required, no open object) are not what is measured.
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    text = f"Answer with JSON of this schema: {json.dumps(schema, ensure_ascii=False)}\n\n{row['text']}"
    body = {"messages": [{"role": "user", "content": text}], "response_format": asked}
    seconds, found = server.ask(body)
    content = found["choices"][0]["message"]["content"] or ""
    value = _json(content)
    valid = _fits(value, schema)
    return _judged("schema", valid, valid and matches(value, row["right"]), seconds, found, content)


def _judged(kind: str, valid: bool, right: bool, seconds: float, found: dict[str, Any], shown: str) -> Judged:
    tokens, finish = found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]
    return Judged(kind, valid, valid and right, seconds, tokens, finish, shown)


def _json(text: str) -> Any:
    """``...`` where it is none, which no schema allows."""
    try:
        return json.loads(text)
    except ValueError:
        return ...


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    return value is not ... and fits(value, schema)
