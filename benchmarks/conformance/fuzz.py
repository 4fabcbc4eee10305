"""schemathesis (PyPI): thousands of requests from the published OpenAPI documents, sound ones and broken ones.

Nothing that a caller sends may be answered with a 5xx: the scripted providers answer all that the real ones would, so
that such an answer is a fault of the gateway's, or of the engine's.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.conformance import specs, tools
from benchmarks.conformance.backends import DEMO, SCRIPTED
from benchmarks.conformance.providers import openai
from benchmarks.conformance.report import Outcome
from benchmarks.conformance.stack import Stack


@dataclass(frozen=True)
class Fuzz:
    """What to fuzz with; None is the documents that llm-comply carries."""

    openai_spec: Path | None = None
    anthropic_spec: Path | None = None
    examples: int = 100
    """Requests made up for each operation, beside those that cover its parameters one by one."""

    def run(self, stack: Stack) -> Iterator[Outcome]:
        """Raises ``tools.Missing``."""
        schemathesis = tools.from_pypi(tools.SCHEMATHESIS).with_name("schemathesis")
        openais = self.openai_spec or specs.carried("openai_chat")
        anthropics = self.anthropic_spec or specs.carried("anthropic")
        models = (*(provider.model for provider in SCRIPTED), DEMO)
        bearer = f"Authorization: Bearer {stack.key}"
        for target, url, header, spec in (
            (
                "gateway, OpenAI's API",
                stack.gateway,
                bearer,
                specs.cut(openais, specs.OPENAI_PATHS, (*models, openai.EMBEDDER), prefix="/v1"),
            ),
            (
                "gateway, Anthropic's API",
                stack.gateway,
                f"x-api-key: {stack.key}",
                specs.cut(anthropics, specs.ANTHROPIC_PATHS, models),
            ),
            (
                "engine, OpenAI's API",
                stack.engine,
                "x-fuzzed: yes",
                specs.cut(
                    openais, specs.ENGINE_PATHS, ("demo",), prefix="/v1", without=specs.NOT_THE_ENGINES
                ),
            ),
        ):
            yield _run(schemathesis, spec, target, url, header, self.examples)


def _run(schemathesis: Path, spec: specs.Json, target: str, url: str, header: str, examples: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tollgate-fuzz-") as folder:
        document, events = Path(folder, "spec.json"), Path(folder, "events.ndjson")
        document.write_text(json.dumps(spec))
        done = subprocess.run(
            [
                *(str(schemathesis), "run", str(document), "--url", url, "--header", header),
                *("--checks", "not_a_server_error", "--mode", "all", "--phases", "examples,coverage,fuzzing"),
                *("--max-examples", str(examples), "--seed", "1", "--continue-on-failure", "--no-shrink"),
                *("--request-timeout", "120", "--generation-database", "none", "--no-color"),
                *("--suppress-health-check", "all", "--warnings", "off"),
                *("--report", "ndjson", "--report-ndjson-path", str(events)),
            ],
            capture_output=True,
            text=True,
            cwd=folder,
        )
        if not events.exists():
            raise RuntimeError(f"schemathesis ended with {done.returncode}: {done.stdout}{done.stderr}")
        with events.open() as lines:
            return _outcome(target, map(json.loads, lines))


def _outcome(target: str, events: Iterable[specs.Json]) -> Outcome:
    failures: Counter[str] = Counter()
    answered: dict[str, Counter[str]] = {}
    faults = 0
    for event in events:
        recorder = (event.get("ScenarioFinished") or {}).get("recorder") or {}
        label = recorder.get("label", "")
        for interaction in (recorder.get("interactions") or {}).values():
            answer = interaction.get("response")
            status = f"{answer['status_code'] // 100}xx" if answer else "no answer"
            answered.setdefault(label, Counter())[status] += 1
            if fault := _fault(answer):
                faults += 1
                failures[f"{label}: {fault}"] += 1
        for problem in _errors(event):
            failures[f"schemathesis: {problem}"] += 1
    total = sum(sum(counts.values()) for counts in answered.values())
    return Outcome(
        "schemathesis",
        target,
        passed=total - faults,
        total=total,
        failures=tuple(f"{line} ({count} times)" for line, count in failures.items()),
        notes=tuple(
            f"{label}: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            for label, counts in answered.items()
        ),
    )


def _fault(answer: specs.Json | None) -> str | None:
    """What is wrong with an answer: there is none, it is a 5xx, or a stream that ends in an error of ours."""
    if answer is None:
        return "no answer"
    content = base64.b64decode((answer.get("content") or {}).get("$base64") or "")
    if b'"code":"deadline_unreachable"' in content:
        return None  # what a request asks for whose x-tollgate-deadline is past
    if answer["status_code"] >= 500:
        return f"{answer['status_code']} {content.decode(errors='replace')[:300]}"
    found = _STREAM_FAULT.search(content)
    return f"a stream ends with {found[0].decode(errors='replace')[:300]}" if found else None


_STREAM_FAULT = re.compile(rb'^data: .*"type":"(?:server_error|api_error)".*$', re.MULTILINE)


def _errors(event: specs.Json) -> list[str]:
    """What schemathesis itself could not do."""
    told = event.get("NonFatalError") or event.get("FatalError")
    return [str(told.get("message") or told)[:300]] if told else []
