"""The kinds of backends that the suites have behind the gateway: the bundled engine, and a script of each provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from benchmarks.conformance.providers import anthropic, azure, bedrock, gemini, mistral, openai

Json = dict[str, Any]
DEMO = "tollgate-demo"
DEMO_WEIGHTS = "demo"
SENTENCES = "all-minilm-l6-v2"
"""The embedder of the gateway's own sidecar."""


@dataclass(frozen=True)
class Scripted:
    """One scripted provider, and what a policy says of it."""

    kind: str
    """The backend's name in policies and tables."""
    module: str
    """What ``python -m`` starts, with a port."""
    app: Callable[[], ASGIApp]
    model: str
    """As the gateway's callers say it."""
    target: str
    """As the provider calls it."""
    embedder: str = ""
    """As the gateway's callers say it; empty where the gateway makes no embeddings with this provider."""
    embeds_with: str = ""
    ready: str = "/v1/models"
    """What answers once it is there, be it with a refusal."""

    def backend(self, url: str) -> Json:
        """The policy's entry for it at ``url``, which is without ``/v1``."""
        match self.kind:
            case "openai":
                return {"kind": "openai", "base_url": f"{url}/v1", "api_key": openai.KEY}
            case "azure":
                return {"kind": "azure", "base_url": url, "api_key": azure.KEY}
            case "anthropic":
                return {"kind": "anthropic", "base_url": url, "api_key": anthropic.KEY}
            case "gemini":
                return {"kind": "gemini", "base_url": url, "api_key": gemini.KEY}
            case "bedrock":
                return {
                    "kind": "bedrock",
                    "base_url": url,
                    "aws": {"region": bedrock.REGION},
                    "api_key": bedrock.KEY,
                }
            case "mistral":
                return {
                    "kind": "openai",
                    "preset": "mistral",
                    "base_url": f"{url}/v1",
                    "api_key": mistral.KEY,
                }
        raise ValueError(self.kind)

    def models(self) -> Json:
        # One try of each: what a provider refuses once reaches the caller, whose client tries again.
        once = {"retry": {"attempts": 1}}
        found: Json = {self.model: {"targets": [{"backend": self.kind, "model": self.target}], **once}}
        if self.embedder:
            found[self.embedder] = {"targets": [{"backend": self.kind, "model": self.embeds_with}], **once}
        return found


SCRIPTED = (
    Scripted(
        "openai", openai.__name__, openai.app, openai.MODEL, openai.MODEL, openai.EMBEDDER, openai.EMBEDDER
    ),
    Scripted(
        "azure",
        azure.__name__,
        azure.app,
        f"azure-{azure.MODEL}",
        azure.MODEL,
        f"azure-{azure.EMBEDDER}",
        azure.EMBEDDER,
    ),
    Scripted("anthropic", anthropic.__name__, anthropic.app, anthropic.MODEL, anthropic.MODEL),
    Scripted("gemini", gemini.__name__, gemini.app, gemini.MODEL, gemini.MODEL, ready="/v1beta/models"),
    Scripted("bedrock", bedrock.__name__, bedrock.app, "bedrock-claude", bedrock.MODEL, ready="/ping"),
    Scripted(
        "mistral",
        mistral.__name__,
        mistral.app,
        mistral.MODEL,
        mistral.MODEL,
        mistral.EMBEDDER,
        mistral.EMBEDDER,
    ),
)


def policy(providers: Mapping[str, str], engine: str, weights: str = DEMO_WEIGHTS) -> Json:
    """A model or two for each kind of backend, by the addresses of ``providers`` and ``engine``, without ``/v1``.

    ``weights``: what the bundled engine serves.
    """
    backends: Json = {
        "bundled": {"kind": "engine", "launch": True, "base_url": engine, "model": weights},
        "sentences": {"kind": "sidecar"},
    }
    models: Json = {
        DEMO: {"targets": [{"backend": "bundled", "model": "demo"}]},
        SENTENCES: {"targets": [{"backend": "sentences", "model": SENTENCES}]},
    }
    if weights != DEMO_WEIGHTS:
        # A small model may talk for an hour after its call.
        models[DEMO]["max_output"] = 1024
    for provider in SCRIPTED:
        backends[provider.kind] = provider.backend(providers[provider.kind])
        models |= provider.models()
    return {
        "version": 1,
        "backends": backends,
        "models": models,
        "guards": {"toxicity": {"on": ["input"], "action": "flag", "checks": ["fast"]}},
    }
