"""llm-comply (PyPI): chat completions, Open Responses and Anthropic's messages against the published schemas.

A case is expected of us wherever the provider itself passes it, in its own dialect: what the bundled model cannot do
(see pictures) is not held against the gateway.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.conformance import tools
from benchmarks.conformance.backends import DEMO, SCRIPTED
from benchmarks.conformance.providers import anthropic, mistral, openai
from benchmarks.conformance.report import Outcome
from benchmarks.conformance.stack import Stack

DIALECTS = ("openai-chat", "open-responses", "anthropic")


@dataclass(frozen=True)
class Provider:
    model: str
    dialect: str = ""
    """Its own dialect; empty where the suite does not speak it, or the server at ``url`` is not asked itself."""
    url: str = ""
    key: str = ""
    its_model: str = ""


def run(stack: Stack) -> Iterator[Outcome]:
    """Raises ``tools.Missing``."""
    python = str(tools.from_pypi(tools.LLM_COMPLY))
    spoken = {
        "openai": ("openai-chat", openai.KEY),
        "mistral": ("openai-chat", mistral.KEY),
        "anthropic": ("anthropic", anthropic.KEY),
    }
    behind = [
        Provider(one.model, spoken[one.kind][0], stack.providers[one.kind], spoken[one.kind][1], one.target)
        if one.kind in spoken
        else Provider(one.model)
        for one in SCRIPTED
    ]
    for provider in (*behind, Provider(DEMO, "openai-chat", stack.engine, "none", "demo")):
        direct = (
            _run(python, provider.dialect, provider.url, provider.key, provider.its_model)
            if provider.dialect
            else []
        )
        theirs = {_kind(case): case["status"] for case in direct}
        score = f"{sum(case['status'] == 'passed' for case in direct)}/{_counted(direct)}"
        for dialect in DIALECTS:
            ours = _run(python, dialect, stack.gateway, stack.key, provider.model)
            yield _outcome(
                dialect, provider.model, ours, theirs, score if dialect == provider.dialect else ""
            )


def _outcome(dialect: str, model: str, ours: list[dict], theirs: dict[str, str], score: str) -> Outcome:
    failed = [case for case in ours if case["status"] == "failed"]
    excused = [case for case in failed if theirs.get(_kind(case)) == "failed"]
    return Outcome(
        f"llm-comply {dialect}",
        model,
        passed=sum(case["status"] == "passed" for case in ours),
        total=_counted(ours),
        failures=tuple(f"{c['id']}: {'; '.join(c['errors'])[:600]}" for c in failed if c not in excused),
        provider=score,
        excused=tuple(case["id"] for case in excused),
        notes=tuple(
            f"{case['id']}: {note}"
            for case in ours
            for note in (*case.get("warnings", ()), *(case["errors"] if case["status"] == "skipped" else ()))
        ),
    )


def _counted(cases: list[dict]) -> int:
    return sum(case["status"] != "skipped" for case in cases)


def _kind(case: dict) -> str:
    """The same case has the same name in every dialect, after the dialect's."""
    return case["id"].removeprefix("chat-").removeprefix("anth-")


def _run(python: str, dialect: str, url: str, key: str, model: str) -> list[dict]:
    anthropics = ["--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01"]
    done = subprocess.run(
        [
            *(python, "-m", "llm_comply.cli", "--json", "--timeout", "120"),
            *("--format", dialect, "--base-url", f"{url}/v1", "--api-key", key, "--model", model),
            *(anthropics if dialect == "anthropic" else ()),
        ],
        capture_output=True,
        text=True,
    )
    try:
        return json.loads(done.stdout)["results"]
    except (json.JSONDecodeError, KeyError):
        raise RuntimeError(f"llm-comply ended with {done.returncode}: {done.stderr.strip()}") from None
