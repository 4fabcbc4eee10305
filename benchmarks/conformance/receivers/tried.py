"""Each tool: its package, and what its own code makes of what is sent."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.conformance.receivers.sample import evaluated, scores
from benchmarks.conformance.report import Outcome
from benchmarks.conformance.stack import ROOT, free_ports, process
from gateway.lab.evaluate.export import langfuse, langsmith
from gateway.observe.telemetry import score as forms

SCRIPTS = Path(__file__).parent / "scripts"
KEY = "tg-receivers"
PATIENCE_S = 120.0
"""Until Phoenix has written what it was sent."""


@dataclass(frozen=True)
class Tool:
    package: str
    cases: Callable[[Path], Iterator[tuple[str, str]]]
    """A name each, and what is wrong with it."""

    def check(self, python: Path) -> Outcome:
        found = [*self.cases(python)]
        wrong = [f"{name}: {why}" for name, why in found if why]
        return Outcome(
            self.package, "", passed=len(found) - len(wrong), total=len(found), failures=tuple(wrong)
        )


def asked(python: Path, script: str, told: Any, *arguments: str) -> Any:
    """What a script in the tool's environment says of ``told``."""
    done = subprocess.run(
        [str(python), str(SCRIPTS / script), *arguments],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        env={**os.environ, "LANGSMITH_TRACING": "false"},
    )
    if done.returncode:
        raise RuntimeError(f"{script} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def of_langfuse(python: Path) -> Iterator[tuple[str, str]]:
    experiments = evaluated()
    rows = [(experiment, row) for experiment in experiments for row in experiment.rows]
    number = langfuse.experiment_id("project", "set", experiments[0].name)
    told = {
        "scores": [
            *map(forms.langfuse, scores()),
            *(one for pair in rows for one in langfuse.scores_of(*pair)),
        ],
        "items": [langfuse.item_of(*pair) for pair in rows],
        "spans": [langfuse.span(*pair, number, "set") for pair in rows],
        "experiment": ["project", "set", experiments[0].name, number],
    }
    yield from asked(python, "langfuse_types.py", told)


def of_langsmith(python: Path) -> Iterator[tuple[str, str]]:
    told = {
        "feedback": [*map(forms.langsmith, scores())],
        "experiments": [*map(langsmith.body_of, evaluated())],
    }
    yield from asked(python, "langsmith_types.py", told)


def of_phoenix(python: Path) -> Iterator[tuple[str, str]]:
    """A gateway whose traces, scores and evaluation go to a server of Phoenix."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="receivers-")))
        port, grpc, own = free_ports(3)
        phoenix, gateway = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own}"
        places = {"PHOENIX_WORKING_DIR": str(folder), "PHOENIX_PORT": str(port)}
        quiet = {"PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_TELEMETRY_ENABLED": "false"}
        program = str(python.parent / "phoenix")
        stack.enter_context(
            process([program, "serve"], folder / "phoenix.log", f"{phoenix}/healthz", **places, **quiet)
        )
        (folder / "policies").mkdir()
        (folder / "policies" / "gateway.yaml").write_text(yaml.safe_dump(_policy(phoenix)))
        serve = [str(ROOT / ".venv" / "bin" / "tollgate"), "serve", "--policies", str(folder / "policies")]
        env = {"TOLLGATE_STATE_DIR": str(folder / "state"), "TOLLGATE_DEV_KEY": KEY}
        stack.enter_context(
            process([*serve, "--port", str(own)], folder / "gateway.log", f"{gateway}/readyz", **env)
        )
        ids = [
            _opinion(gateway, headers) for headers in ({}, {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
        ]
        cases = [
            {"id": f"q{place}", "prompt": f"{place}?", "reference": "42", "checks": [{"number": 42}]}
            for place in range(3)
        ]
        (folder / "golden.jsonl").write_text("\n".join(map(json.dumps, cases)))
        evaluate = [serve[0], "evaluate", str(folder / "golden.jsonl"), "--models", "good,bad"]
        done = subprocess.run(
            [*evaluate, "--url", gateway, "--export", "phoenix", "--export-to", phoenix],
            env={**os.environ, "TOLLGATE_API_KEY": KEY},
            capture_output=True,
            text=True,
        )
        yield "tollgate evaluate --export", "" if done.returncode in (0, 1) else done.stderr
        yield from _until_there(python, phoenix, ids)


def _policy(phoenix: str) -> dict[str, Any]:
    answers = {"good": "it is 42", "bad": "it is 41"}
    return {
        "version": 1,
        "backends": {name: {"kind": "fake", "script": [{"reply": text}]} for name, text in answers.items()},
        "models": {name: {"targets": [{"backend": name, "model": name}]} for name in answers},
        "telemetry": {
            "endpoint": phoenix,
            "metrics": False,
            "content": True,
            "resource": {"openinference.project.name": "tollgate"},
            "scores": {"receiver": "phoenix"},
        },
    }


def _opinion(gateway: str, headers: dict[str, str]) -> str:
    """The request's id. Its second opinion is the one that counts."""
    with httpx.Client(base_url=gateway, headers={"authorization": f"Bearer {KEY}"}, trust_env=False) as http:
        body = {"model": "good", "messages": [{"role": "user", "content": "Hi"}]}
        request_id = http.post("/v1/chat/completions", json=body, headers=headers).headers["x-request-id"]
        for told in ({"score": 1}, {"score": 0.25, "label": "odd", "comment": "It is Tuesday."}):
            http.post(f"/v1/requests/{request_id}/feedback", json=told).raise_for_status()
        return request_id


def _until_there(python: Path, phoenix: str, ids: list[str]) -> list[tuple[str, str]]:
    """Phoenix writes what it is sent a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [tuple(one) for one in asked(python, "phoenix_client.py", ids, phoenix)]
        if not any(why for _, why in found) or time.monotonic() > deadline:
            return found
        time.sleep(1.0)


TOOLS = (
    Tool("langfuse==5.0.4", of_langfuse),
    Tool("langsmith==0.15.1", of_langsmith),
    Tool("arize-phoenix==20.26.1", of_phoenix),
)
