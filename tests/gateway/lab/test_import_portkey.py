"""``tollgate import portkey``: targets under strategies become models that fall back on each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.policy.loader import load_policy
from gateway.policy.schema import Policy

KEYS = {"OPENAI_API_KEY": "a", "ANTHROPIC_API_KEY": "b", "GROQ_API_KEY": "c", "AZURE_API_KEY": "d"}
OPENAI = {"provider": "openai", "override_params": {"model": "gpt-4o"}}
CLAUDE = {"virtual_key": "anthropic-prod-1a2b", "override_params": {"model": "claude-x", "max_tokens": 9}}
GROQ = {"override_params": {"model": "@groq-team/llama"}}


def policy_of(config: Any, tmp_path: Path, *more: str) -> Policy:
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = tmp_path / "policies"
    assert main(["import", "portkey", str(tmp_path / "config.json"), "--out", str(out), *more]) == 0
    return load_policy(out, KEYS).policy


def test_a_shared_load(tmp_path: Path) -> None:
    config = {
        "strategy": {"mode": "loadbalance"},
        "targets": [OPENAI | {"weight": 0.7}, CLAUDE | {"weight": 0.3}, GROQ | {"weight": 0}],
        "retry": {"attempts": 2, "on_status_codes": [500]},
        "cache": {"mode": "simple", "max_age": 600},
        "request_timeout": 10000,
    }
    policy = policy_of(config, tmp_path, "--name", "mixed")
    model = policy.models["mixed"]
    assert [(one.backend, one.model, one.weight) for one in model.targets] == [
        ("openai", "gpt-4o", 0.7),
        ("anthropic", "claude-x", 0.3),
    ]
    assert (model.retry.attempts, model.timeouts.total) == (3, 10)
    assert policy.caches.exact is not None and policy.caches.exact.ttl == 600
    report = (tmp_path / "policies" / "IMPORT.md").read_text()
    assert "override_params.max_tokens" in report and "set ANTHROPIC_API_KEY" in report


def test_fallbacks_with_a_shared_load_among_them(tmp_path: Path) -> None:
    azure = {
        "provider": "azure-openai",
        "azure_resource_name": "contoso",
        "azure_deployment_id": "d1",
        "azure_api_version": "2024-10-21",
    }
    config = {
        "strategy": {"mode": "fallback", "on_status_codes": [429]},
        "targets": [azure, {"strategy": {"mode": "loadbalance"}, "targets": [OPENAI, CLAUDE]}, GROQ],
    }
    policy = policy_of(config, tmp_path)
    assert policy.models["chat"].fallbacks == ("chat--2", "chat--3")
    assert policy.models["chat"].targets[0].model == "d1"
    assert [one.backend for one in policy.models["chat--2"].targets] == ["openai", "anthropic"]
    assert policy.models["chat--3"].targets[0].model == "llama"


def test_one_target_and_its_guardrails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"provider": "openai", "api_key": "sk-open", "input_guardrails": ["guardrail-1"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = tmp_path / "p"
    assert (
        main(["import", "portkey", str(tmp_path / "config.json"), "--out", str(out), "--name", "gpt-4o"]) == 0
    )
    assert "input_guardrails" in capsys.readouterr().out
    assert (out / ".env").read_text() == "OPENAI_API_KEY='sk-open'\n"
    assert load_policy(out, KEYS).policy.models["gpt-4o"].targets[0].model == "gpt-4o"


@pytest.mark.parametrize("text", ["{", "[]", '{"provider": "nobody"}'])
def test_what_is_no_config(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(text)
    assert main(["import", "portkey", str(tmp_path / "config.json"), "--out", str(tmp_path / "o")]) == 1
    assert "tollgate import: " in capsys.readouterr().err
