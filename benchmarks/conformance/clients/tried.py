"""A client's script, run against a stack: what each feature came to with each kind of backend."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.conformance.backends import DEMO, SCRIPTED, SENTENCES
from benchmarks.conformance.clients.catalogue import Client
from benchmarks.conformance.clients.features import FEATURES
from benchmarks.conformance.providers import said
from benchmarks.conformance.stack import Stack

BUNDLED = "bundled"
KINDS = (BUNDLED, *(provider.kind for provider in SCRIPTED))
PATIENCE_S = 600
PATIENCE = "TOLLGATE_AGENT_PATIENCE"
MODEL_PATIENCE_S = 1500
"""For one errand on a model with weights, on a CPU."""


@dataclass(frozen=True)
class Tried:
    """One feature with one kind of backend."""

    kind: str
    feature: str
    works: bool
    reason: str = ""
    """Why not: what the gateway or the model said of it."""
    is_fault: bool = False
    """It neither works nor was refused in so many words."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    client: str
    versions: Mapping[str, str]
    tried: tuple[Tried, ...]

    @property
    def faults(self) -> list[str]:
        return [
            f"{self.client}, {one.kind}: {one.feature}: {one.reason}" for one in self.tried if one.is_fault
        ]


def try_out(
    client: Client, stack: Stack, kinds: Sequence[str] = KINDS, only: Sequence[str] = (), folder: str = ""
) -> Report:
    """Run ``client`` with the models of ``kinds``; an agent in ``folder``. Raises ``tools.Missing`` where it is not
    installed."""
    models = {
        provider.model: (provider.kind, provider.embedder or provider.model)
        for provider in SCRIPTED
        if provider.kind in kinds
    }
    if BUNDLED in kinds and (stack.has_weights or not client.is_agent):
        models = {DEMO: (BUNDLED, SENTENCES), **models}
    asked = [{"model": model, "embedder": embedder} for model, (_, embedder) in models.items()]
    patience = float(os.environ.get(PATIENCE, MODEL_PATIENCE_S))
    done = subprocess.run(
        [*client.command(), *only],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + (patience if stack.has_weights else 0),
        env={
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_"))
            },
            "TOLLGATE_HOME": str(client.home),
            "TOLLGATE_URL": stack.gateway,
            "TOLLGATE_KEY": stack.key,
            "TOLLGATE_MODELS": json.dumps(asked),
            "TOLLGATE_AGENT_FOLDER": folder,
            **({PATIENCE: str(patience)} if stack.has_weights else {}),
        },
    )
    if done.returncode:
        raise RuntimeError(f"{client.script} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    first, *lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    tried = tuple(_read(line, models[line["model"]][0]) for line in lines)
    if unknown := {one.feature for one in tried} - FEATURES.keys():
        raise RuntimeError(f"{client.script} tries what has no row: {', '.join(sorted(unknown))}")
    return Report(client.name, first["versions"], tried)


def _read(line: Mapping[str, object], kind: str) -> Tried:
    feature, seconds = str(line["feature"]), float(str(line.get("seconds", 0)))
    if line["ok"]:
        words = line.get("said")
        if kind != BUNDLED and words is not None and words != said.TEXT:
            return Tried(kind, feature, False, f"the model's words came as {words!r}", is_fault=True)
        return Tried(kind, feature, True, seconds=seconds)
    if lacks := line.get("lacks"):
        return Tried(kind, feature, False, str(lacks))
    reason = " ".join(str(line["error"]).split())
    refused = line.get("status") in (400, 404) and feature != "errors"
    return Tried(kind, feature, False, reason, is_fault=not refused, seconds=seconds)
