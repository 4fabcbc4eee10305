"""compatcanary (npm): does an "OpenAI-compatible" API behave like one? Its chat profile, for every kind of backend."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

from benchmarks.conformance import tools
from benchmarks.conformance.backends import DEMO, SCRIPTED
from benchmarks.conformance.providers import openai
from benchmarks.conformance.report import Outcome
from benchmarks.conformance.stack import Stack

SUITE = "compatcanary"


def run(stack: Stack) -> Iterator[Outcome]:
    """``passed`` and ``total`` are its score out of 100. Raises ``tools.Missing``."""
    command = tools.from_npm(tools.COMPATCANARY)
    direct = _scan(command, f"{stack.providers['openai']}/v1", openai.KEY, openai.MODEL)
    for model in (DEMO, *(provider.model for provider in SCRIPTED)):
        found = _scan(command, f"{stack.gateway}/v1", stack.key, model)
        yield Outcome(
            SUITE,
            model,
            passed=found["score"],
            total=100,
            failures=tuple(
                f"{probe['id']}: {probe['summary']}"
                for probe in found["results"]
                if probe["status"] != "pass"
            ),
            provider=f"{direct['score']}/100" if model == openai.MODEL else "",
        )


def _scan(command: list[str], base_url: str, key: str, model: str) -> dict:
    options = [
        "--base-url",
        base_url,
        "--model",
        model,
        "--profile",
        "chat",
        "--format",
        "json",
        "--fail-on",
        "never",
    ]
    done = subprocess.run(
        [*command, "scan", *options, "--timeout", "120"],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": key},
    )
    if done.returncode:
        raise RuntimeError(f"compatcanary ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)
