"""``tollgate import agentgateway``: models, virtual models, routes to ``ai`` backends and callers' keys."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from gateway.__main__ import main
from gateway.lab.migration import agentgateway
from gateway.lab.migration.draft import PolicyDraft
from gateway.policy.loader import load_policy
from gateway.policy.schema import Policy

MODELS = """
llm:
  port: 4000
  providers:
  - {name: shared, provider: openAI, params: {apiKey: $OPENAI_API_KEY}}
  policies:
    apiKey:
      mode: strict
      keys:
      - key: sk-team-a-abc
        metadata: {name: team-a}
        allowedModels: ["smart*"]
        budgets:
        - {name: spend, limit: {unit: USD, amount: 8}, window: {rolling: 24h}, onBudgetExceeded: Block}
        - {name: watch, limit: {unit: USD, amount: 1}, window: {rolling: 1h}, onBudgetExceeded: Audit}
      - {keyHash: "sha256:1311f8fc80a7ea28d78dd7723f09c44c1754cd35160ca8e7133ae3d7f636a19a"}
    jwtAuth: {issuer: x}
  models:
  - {name: fast, provider: {reference: shared}, params: {model: gpt-4o-mini}}
  - {name: local, provider: openAI, params: {hostOverride: "localhost:11434", model: llama}}
  - {name: grok, provider: openAI, params: {baseUrl: "https://api.x.ai", apiKey: "${XAI}", model: grok-4}}
  - name: az
    provider: azure
    auth: {key: {value: $AZ, location: {header: {name: api-key}}}}
    params: {azureResourceName: r, azureResourceType: openAI, model: gpt-4o}
  - {name: p, visibility: internal, provider: anthropic, params: {model: claude-a, apiKey: $ANTHROPIC_API_KEY}}
  - {name: q, visibility: internal, provider: anthropic, params: {model: claude-b, apiKey: $ANTHROPIC_API_KEY}}
  - {name: by-header, provider: anthropic, params: {apiKey: $ANTHROPIC_API_KEY}, matches: [{headers: [{name: x}]}]}
  virtualModels:
  - {name: smart, mode: weighted, routes: [{model: p, weight: 90}, {model: q, weight: 10}]}
  - {name: resilient, mode: failover, routes: [{model: p, priority: 1}, {model: q, priority: 2}]}
  - {name: adaptive, mode: conditional, routes: [{model: q, when: 'request.headers["x"] == "y"'}]}
mcp: {port: 3000}
"""
ROUTES = """
binds:
- port: 3000
  listeners:
  - routes:
    - policies:
        urlRewrite: {authority: {full: api.groq.com}, path: {full: /openai/v1/chat/completions}}
        backendTLS: {}
        backendAuth: {key: $GROQ_API_KEY}
        apiKey: {mode: strict, keys: [{key: k-plain-456789, metadata: {user: bob}}]}
        ai: {promptGuard: {request: []}}
      backends:
      - ai: {name: groq, hostOverride: "api.groq.com:443", provider: {openAI: {model: llama-3}}}
    - backends:
      - ai:
          groups:
          - providers: [{name: one, provider: {openAI: {model: gpt-x}}, backendAuth: {key: $OPENAI_API_KEY}}]
          - providers: [{name: two, provider: {gemini: {model: gemini-y}}, backendAuth: {key: $GEMINI_API_KEY}}]
    - backends: [{mcp: {targets: []}}]
"""


def imported(text: str) -> PolicyDraft:
    return agentgateway.imported(yaml.safe_load(text), source="config.yaml", env={})


def served(draft: PolicyDraft, folder: Path) -> Policy:
    draft.write(folder)
    return load_policy(folder, {**dict.fromkeys(draft.needed, "k"), **draft.secrets}).policy


def test_models_and_virtual_ones(tmp_path: Path) -> None:
    draft = imported(MODELS)
    policy = served(draft, tmp_path)
    assert [*policy.models] == [
        "smart", "resilient", "resilient--2", "fast", "local", "grok", "az", "q", "by-header"
    ]  # fmt: skip
    assert [(one.model, one.weight) for one in policy.models["smart"].targets] == [
        ("claude-a", 90.0),
        ("claude-b", 10.0),
    ]
    assert policy.models["resilient"].fallbacks == ("resilient--2",)
    urls = {name: draft.backends[policy.models[name].targets[0].backend] for name in ("local", "grok", "az")}
    assert urls == {
        "local": {
            "kind": "openai",
            "base_url": "http://localhost:11434/v1",
            "api_key": "${OPENAI_LIKE_API_KEY:-}",
        },
        "grok": {"kind": "openai", "base_url": "https://api.x.ai/v1", "api_key": "${XAI}"},
        "az": {"kind": "azure", "base_url": "https://r.openai.azure.com", "api_key": "${AZ}"},
    }
    told = {note.where for note in draft.report.notes}
    assert {"llm.virtualModels[2]", "llm.models[6].matches", "llm.policies.jwtAuth", "mcp"} <= told


def test_keys_come_along(tmp_path: Path) -> None:
    draft = imported(MODELS)
    team, hashed = served(draft, tmp_path).keys
    assert (team.id, team.sha256) == ("team-a", sha256(b"sk-team-a-abc").hexdigest())
    assert (team.models, team.budget.usd_per_day) == (("smart*",), 8.0)
    assert hashed.sha256.startswith("1311f8fc")
    assert [note.what for note in draft.report.notes if "budgets[1]" in note.where]


def test_routes(tmp_path: Path) -> None:
    draft = imported(ROUTES)
    policy = served(draft, tmp_path)
    assert policy.models["gpt-x"].fallbacks == ("gpt-x--2",)
    assert policy.models["gpt-x--2"].targets[0].model == "gemini-y"
    assert draft.backends["api.groq.com"] == {
        "kind": "openai",
        "base_url": "https://api.groq.com/openai/v1",
        "api_key": "${GROQ_API_KEY}",
    }
    assert [key.id for key in policy.keys] == ["bob"]
    told = {note.where for note in draft.report.notes}
    assert "binds[0].listeners[0].routes[2].backends[0]" in told
    assert "binds[0].listeners[0].routes[0].policies.ai" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{apiVersion: v1, kind: Gateway}", "is a resource of Kubernetes"),
        ("- a", "is no configuration of agentgateway"),
        ("a: [", "is not valid YAML"),
        ("mcp: {}", "no model that can be imported"),
    ],
)
def test_what_is_no_configuration(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert main(["import", "agentgateway", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "o")]) == 1
    assert said in capsys.readouterr().err
    (tmp_path / "c.yaml").write_text(MODELS)
    assert main(["import", "agentgateway", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "o")]) == 0
    assert "needs your hand" not in capsys.readouterr().out
