"""``tollgate import bifrost``: providers with several keys, virtual keys, budgets and rules become a policy."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.lab.migration import bifrost
from gateway.lab.migration.draft import PolicyDraft
from gateway.policy.loader import load_policy
from gateway.policy.schema import Policy

CONFIG: dict[str, Any] = {
    "$schema": "https://www.getbifrost.ai/schema",
    "providers": {
        "openai": {
            "keys": [
                {"name": "a", "value": "env.KEY_1", "models": ["*"], "weight": 2},
                {"name": "b", "value": "env.KEY_2", "models": ["small"], "weight": 1},
            ],
            "network_config": {
                "default_request_timeout_in_seconds": 120,
                "max_retries": 3,
                "retry_backoff_initial": 500,
                "stream_idle_timeout_in_seconds": 20,
            },
            "concurrency_and_buffer_size": {"concurrency": 10},
        },
        "azure": {
            "keys": [
                {
                    "value": "env.AZ",
                    "models": ["gpt-4o"],
                    "aliases": {"gpt-4o": "prod"},
                    "azure_key_config": {"endpoint": "https://r.openai.azure.com/"},
                }
            ]
        },
        "vertex": {
            "keys": [
                {
                    "value": "",
                    "models": ["google/gemini-x"],
                    "vertex_key_config": {"project_id": "p", "region": "us-east1"},
                }
            ]
        },
        "ollama": {"keys": [{"value": "", "models": ["llama"], "ollama_key_config": {"url": "http://h:11434"}}]},
        "nobodys": {"keys": [{"value": "k", "models": ["*"]}]},
    },
    "governance": {
        "budgets": [
            {"id": "m", "max_limit": 100, "reset_duration": "1M", "virtual_key_id": "vk-1"},
            {"id": "d", "max_limit": 50, "reset_duration": "1d", "team_id": "team-1"},
        ],
        "rate_limits": [
            {
                "id": "r",
                "request_max_limit": 6000,
                "request_reset_duration": "1h",
                "token_max_limit": 9000,
                "token_reset_duration": "1d",
            }
        ],
        "teams": [{"id": "team-1", "name": "ML Team"}],
        "virtual_keys": [
            {
                "id": "vk-1",
                "name": "platform",
                "value": "sk-bf-platform-key",
                "team_id": "team-1",
                "rate_limit_id": "r",
                "provider_configs": [
                    {"provider": "openai", "allowed_models": ["gpt-4o", "small"], "key_ids": ["*"]},
                    {"provider": "vertex", "allowed_models": ["*"], "key_ids": ["*"]},
                ],
            },
            {"id": "vk-2", "name": "later", "value": "env.NOT_SET", "provider_configs": [{"provider": "openai",
             "allowed_models": ["*"]}]},
            {"id": "vk-3", "name": "off", "value": "x", "is_active": False},
        ],
        "routing_rules": [
            {
                "cel_expression": "request.model == 'best'",
                "targets": [
                    {"provider": "azure", "model": "gpt-4o", "weight": 0.7},
                    {"provider": "openai", "model": "gpt-4o", "weight": 0.3},
                ],
                "fallbacks": ["ollama/llama"],
            },
            {"cel_expression": "headers['x-team'] == 'a'", "targets": [{"provider": "azure", "weight": 1}]},
        ],
    },
    "mcp": {"client_configs": []},
    "plugins": [{"name": "semantic_cache", "enabled": True}],
}  # fmt: skip


def served(draft: PolicyDraft, folder: Path) -> Policy:
    draft.write(folder)
    return load_policy(folder, {**dict.fromkeys(draft.needed, "k"), **draft.secrets}).policy


def test_providers_keys_and_rules(tmp_path: Path) -> None:
    draft = bifrost.imported(CONFIG, source="config.json", env={})
    policy = served(draft, tmp_path)
    small = policy.models["openai/small"]
    assert [(one.model, one.weight) for one in small.targets] == [("small", 2.0), ("small", 1.0)]
    assert (small.retry.attempts, small.timeouts.total, small.timeouts.idle) == (4, 120, 20)
    assert small.aliases == ("small",) and policy.backends["openai"].max_concurrency == 10
    assert policy.models["azure/gpt-4o"].targets[0].model == "prod"
    assert policy.models["vertex/google/gemini-x"].targets[0].model == "gemini-x"
    assert draft.backends["ollama"]["base_url"] == "http://h:11434/v1"
    best = policy.models["best"]
    assert [(one.backend, one.weight) for one in best.targets] == [("azure", 0.7), ("openai", 0.3)]
    assert best.fallbacks == ("ollama/llama",)
    told = {note.where for note in draft.report.notes}
    assert {"providers.nobodys", "governance.routing_rules[1]", "plugins"} <= told


def test_virtual_keys_keep_their_value(tmp_path: Path) -> None:
    draft = bifrost.imported(CONFIG, source="config.json", env={"NOT_SET": ""})
    [key] = served(draft, tmp_path).keys
    assert (key.id, key.sha256) == ("platform", sha256(b"sk-bf-platform-key").hexdigest())
    assert (key.tenant, key.models) == ("ML-Team", ("openai/gpt-4o", "openai/small", "vertex/*"))
    assert (key.budget.usd_per_month, key.quotas.requests_per_minute, key.quotas.tokens_per_day) == (
        100,
        100,
        9000,
    )
    assert draft.content["tenants"]["ML-Team"] == {"budget": {"usd_per_day": 50.0}}
    said = {note.where: note.todo for note in draft.report.notes}
    assert "tollgate keys create --id later" in said["governance.virtual_keys[1].value"]
    assert "governance.virtual_keys[2]" in said
    again = bifrost.imported(CONFIG, source="config.json", env={"NOT_SET": "sk-bf-later"})
    assert [key["id"] for key in again.keys] == ["platform", "later"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    out = tmp_path / "policies"
    arguments = ["import", "bifrost", str(tmp_path / "config.json"), "--out", str(out)]
    assert main([*arguments, "--models", "openai/gpt-next"]) == 0
    assert "openai/gpt-next" in (out / "gateway.yaml").read_text()
    assert "tollgate serve" in capsys.readouterr().out
    (tmp_path / "config.json").write_text("[" * 5000)
    arguments[-1] = str(tmp_path / "other")
    assert main(arguments) == 1
    assert "is not valid JSON" in capsys.readouterr().err
