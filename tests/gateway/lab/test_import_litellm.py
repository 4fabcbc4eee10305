"""``tollgate import litellm``: configurations in the forms of LiteLLM's documentation become valid policies."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from datetime import date
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from gateway.__main__ import main
from gateway.lab.migration import dumps, litellm
from gateway.lab.migration.draft import PolicyDraft
from gateway.policy.loader import load_policy
from gateway.policy.schema import Policy

TODAY = date(2030, 1, 15)
STAND_INS = {"REDIS_HOST": "cache.internal", "REDIS_PORT": "6379"}
HASH = sha256(b"sk-alice").hexdigest()


def imported(
    config: str,
    *,
    rows: Sequence[dict[str, Any]] = (),
    env: Mapping[str, str] = MappingProxyType({}),
    wanted: tuple[str, ...] = (),
) -> PolicyDraft:
    return litellm.imported(
        yaml.safe_load(config), source="config.yaml", env=env, rows=rows, wanted=wanted, today=TODAY
    )


def served(draft: PolicyDraft, folder: Path) -> Policy:
    """As it is written, and read again with each variable that it needs."""
    draft.write(folder)
    values = {name: STAND_INS.get(name, "https://x.invalid") for name in draft.needed}
    return load_policy(folder, {**values, **draft.secrets}).policy


def said(draft: PolicyDraft, where: str) -> list[str]:
    return [note.what for note in draft.report.notes if note.where.startswith(where)]


def one(params: str, more: str = "") -> str:
    return f"model_list: [{{model_name: m, litellm_params: {{{params}}}}}]\n{more}"


@pytest.mark.parametrize(
    ("params", "backend", "model"),
    [
        (
            "model: gpt-4o",
            {"kind": "openai", "base_url": "https://api.openai.com/v1", "api_key": "${OPENAI_API_KEY}"},
            "gpt-4o",
        ),
        (
            "model: openai/mine, api_base: 'http://10.0.0.7:8000/v1/', api_key: os.environ/MINE",
            {"kind": "openai", "base_url": "http://10.0.0.7:8000/v1", "api_key": "${MINE}"},
            "mine",
        ),
        (
            "model: azure/my-deployment, api_base: 'https://c.openai.azure.com/', api_version: '2024-10-21'",
            {
                "kind": "azure",
                "base_url": "https://c.openai.azure.com",
                "api_version": "2024-10-21",
                "api_key": "${AZURE_API_KEY}",
            },
            "my-deployment",
        ),
        (
            "model: azure/d, api_base: os.environ/BASE, tenant_id: t, client_id: c, client_secret: os.environ/CS",
            {
                "kind": "azure",
                "base_url": "${BASE}",
                "entra": {"tenant_id": "t", "client_id": "c", "client_secret": "${CS}"},
            },
            "d",
        ),
        (
            "model: claude-sonnet-4-5",
            {"kind": "anthropic", "api_key": "${ANTHROPIC_API_KEY}"},
            "claude-sonnet-4-5",
        ),
        (
            "model: gemini/gemini-2.5-flash",
            {"kind": "gemini", "api_key": "${GEMINI_API_KEY}"},
            "gemini-2.5-flash",
        ),
        (
            "model: vertex_ai/gemini-2.5-pro, vertex_project: p, vertex_location: eu-w4, vertex_credentials: /k.json",
            {
                "kind": "gemini",
                "vertex": {"project": "p", "location": "eu-w4", "credentials": "/k.json"},
            },
            "gemini-2.5-pro",
        ),
        (
            "model: bedrock/converse/eu.anthropic.claude-x, aws_region_name: eu-west-1, aws_profile_name: prod",
            {"kind": "bedrock", "aws": {"region": "eu-west-1", "profile": "prod"}},
            "eu.anthropic.claude-x",
        ),
        ("model: bedrock/us-west-2/nova", {"kind": "bedrock", "aws": {"region": "us-west-2"}}, "nova"),
        (
            "model: ollama_chat/llama3, api_base: 'http://localhost:11434'",
            {"kind": "openai", "base_url": "http://localhost:11434/v1", "api_key": "${OLLAMA_API_KEY:-}"},
            "llama3",
        ),
        (
            "model: hosted_vllm/org/llama, api_base: 'http://gpu:8000/v1'",
            {"kind": "openai", "base_url": "http://gpu:8000/v1", "api_key": "${HOSTED_VLLM_API_KEY:-}"},
            "org/llama",
        ),
        (
            "model: huggingface/org/zephyr, api_base: 'http://tgi:8001'",
            {"kind": "openai", "base_url": "http://tgi:8001/v1", "api_key": "${HUGGINGFACE_API_KEY:-}"},
            "org/zephyr",
        ),
        (
            "model: openrouter/a/b",
            {"kind": "openai", "preset": "openrouter", "api_key": "${OPENROUTER_API_KEY}"},
            "a/b",
        ),
        (
            "model: mistral/large",
            {"kind": "openai", "preset": "mistral", "api_key": "${MISTRAL_API_KEY}"},
            "large",
        ),
        ("model: groq/l", {"kind": "openai", "preset": "groq", "api_key": "${GROQ_API_KEY}"}, "l"),
        (
            "model: deepseek/c",
            {"kind": "openai", "preset": "deepseek", "api_key": "${DEEPSEEK_API_KEY}"},
            "c",
        ),
        ("model: x/y, mock_response: hello", {"kind": "fake", "script": [{"reply": "hello"}]}, "y"),
    ],
    ids=lambda value: value.split(",")[0] if isinstance(value, str) else "",
)
def test_a_deployment_is_a_backend_and_a_target(
    params: str, backend: dict[str, Any], model: str, tmp_path: Path
) -> None:
    draft = imported(one(params))
    [(name, settings)] = draft.backends.items()
    assert settings == backend
    assert draft.models["m"]["targets"] == [{"backend": name, "model": model}]
    assert served(draft, tmp_path).models["m"].targets[0].model == model


@pytest.mark.parametrize(
    "params",
    [
        "model: replicate/llama",
        "model: vertex_ai/claude-x",
        "model: auto_router/r",
        "model: huggingface/x",
        "model: nobody",
    ],
)
def test_what_nobody_serves_is_told(params: str) -> None:
    draft = imported(one(params))
    assert not draft.models
    assert any(
        note.fate == "dropped" for note in draft.report.notes if note.where.startswith("model_list[0]")
    )


@pytest.mark.parametrize(("value", "told"), [("false", True), ("/etc/our-ca.pem", True), ("true", False)])
def test_certificates_that_were_not_verified_are_told(value: str, told: bool) -> None:
    draft = imported(
        one(f"model: openai/x, api_key: k, ssl_verify: {value}", f"litellm_settings: {{ssl_verify: {value}}}")
    )
    for where in ("model_list[0].litellm_params.ssl_verify", "litellm_settings.ssl_verify"):
        assert ("certificates of servers are always verified" in " ".join(said(draft, where))) is told


def test_secrets_in_the_open_become_variables(tmp_path: Path) -> None:
    draft = imported(
        "model_list:\n"
        "- {model_name: a, litellm_params: {model: gpt-4o, api_key: sk-one}}\n"
        '- {model_name: b, litellm_params: {model: gpt-4o, api_key: "sk-\'two"}}\n'
        "- {model_name: c, litellm_params: {model: gpt-4o, api_key: sk-one}}\n"
        "environment_variables: {LANGFUSE_KEY: x}\n"
    )
    served(draft, tmp_path)
    assert "sk-" not in (tmp_path / "gateway.yaml").read_text()
    assert len(draft.backends) == 2
    assert (
        tmp_path / ".env"
    ).read_text() == "LANGFUSE_KEY='x'\nOPENAI_API_KEY='sk-one'\nOPENAI_API_KEY_2='sk-'\\''two'\n"
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600


def test_a_key_in_the_open_takes_no_variable_that_something_else_reads(tmp_path: Path) -> None:
    """One's own server at an OpenAI address would be sent OpenAI's key, or OpenAI that of the server."""
    draft = imported("""
model_list:
- {model_name: own, litellm_params: {model: openai/q, api_base: "http://h/v1", api_key: local}}
- {model_name: paid, litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY}}
- {model_name: second, litellm_params: {model: openai/gpt-4o, api_key: sk-two}}
- {model_name: third, litellm_params: {model: anthropic/claude-x, api_key: sk-three}}
- {model_name: usual, litellm_params: {model: claude-x}}
""")
    served(draft, tmp_path)
    assert draft.secrets == {
        "UPSTREAM_API_KEY": "local",
        "OPENAI_API_KEY_2": "sk-two",
        "ANTHROPIC_API_KEY_2": "sk-three",
    }
    keys = [backend["api_key"] for backend in draft.backends.values()]
    assert keys == [
        "${UPSTREAM_API_KEY}",
        "${OPENAI_API_KEY}",
        "${OPENAI_API_KEY_2}",
        "${ANTHROPIC_API_KEY_2}",
        "${ANTHROPIC_API_KEY}",
    ]


def deployments(*params: str) -> str:
    return "model_list:\n" + "".join(
        f"- {{model_name: m, litellm_params: {{model: openai/x, api_base: 'http://h{n}/v1', {one}}}}}\n"
        for n, one in enumerate(params)
    )


@pytest.mark.parametrize(
    ("params", "weights"),
    [
        (["weight: 9", "weight: 1"], [9.0, 1.0]),
        (["rpm: 60", "rpm: 20"], [60.0, 20.0]),
        (["tpm: 100", "tpm: 300"], [100.0, 300.0]),
        (["weight: 1, rpm: 5", "weight: 3, rpm: 5"], [1.0, 3.0]),
        (["weight: 2", "rpm: 5"], [2.0]),
        (["rpm: 5", "weight: 2, rpm: 3"], [5.0, 3.0]),
        (["timeout: 5", "weight: 2"], [None, None]),
        (["", ""], [None, None]),
    ],
)
def test_weights_are_what_the_shuffle_draws_by(params: list[str], weights: list[float | None]) -> None:
    draft = imported(deployments(*params))
    assert [target.get("weight") for target in draft.models["m"]["targets"]] == weights


def test_order_leads_to_models_to_fall_back_on(tmp_path: Path) -> None:
    draft = imported(
        deployments("order: 2", "order: 1", "order: 3") + "litellm_settings: {fallbacks: [{m: [m, z]}]}\n"
    )
    policy = served(draft, tmp_path)
    assert [*policy.models] == ["m", "m--2", "m--3"]
    assert policy.models["m"].fallbacks == ("m--2", "m--3")
    assert policy.models["m"].targets[0].backend == "h1"
    assert said(draft, "litellm_settings.fallbacks.m") == [
        "no model 'z' was imported, on which it falls back"
    ]


def test_who_has_no_order_comes_after_those_that_have_one() -> None:
    draft = imported(deployments("weight: 3", "order: 1"))
    assert draft.models["m"]["targets"] == [{"backend": "h1", "model": "x"}]
    assert draft.models["m--2"]["targets"] == [{"backend": "h0", "model": "x"}]


def test_a_second_redis_is_told() -> None:
    draft = imported("""
model_list: [{model_name: a, litellm_params: {model: gpt-4o}}]
litellm_settings: {cache: true, cache_params: {type: redis, host: h, port: 1}}
router_settings: {redis_host: h, redis_port: 1, redis_password: secret}
""")
    assert draft.content["store"] == "redis://h:1/0"
    [note] = [note for note in draft.report.notes if note.where == "router_settings.redis_host"]
    assert "store: redis://:${REDIS_PASSWORD}@h:1/0" in note.todo and "secret" not in note.todo


ROUTED = """
model_list:
- {model_name: a, litellm_params: {model: gpt-4o}, model_info: {max_input_tokens: 8000, max_output_tokens: 1000}}
- {model_name: b, litellm_params: {model: gpt-4.1, timeout: 30, stream_timeout: 5}, model_info: {id: the-b}}
- {model_name: c, litellm_params: {model: claude-x, input_cost_per_token: 0.000003, output_cost_per_token: 0.000015}}
- {model_name: "spaced name", litellm_params: {model: gpt-4o}}
router_settings:
  routing_strategy: least-busy
  num_retries: 2
  timeout: 60
  allowed_fails: 1
  cooldown_time: 30
  model_group_alias: {gpt-4: a, hidden: {model: b, hidden: true}, b: a, nowhere: z}
  redis_host: cache.internal
  redis_port: 6380
  redis_password: pw
litellm_settings:
  fallbacks: [{a: [the-b, hidden, c]}, {"*": [c]}]
  context_window_fallbacks: [{a: [c, b]}]
  content_policy_fallbacks: [{a: [b]}]
  drop_params: true
"""


def test_settings_of_the_router(tmp_path: Path) -> None:
    draft = imported(ROUTED)
    policy = served(draft, tmp_path)
    a, b, c = (policy.models[name] for name in "abc")
    assert (a.aliases, b.aliases) == (("gpt-4",), ("hidden",))
    assert (a.fallbacks, b.fallbacks, c.fallbacks) == (("b", "c"), ("c",), ())
    assert (a.larger_context, a.context, a.max_output) == ("c", 8000, 1000)
    assert (a.timeouts.total, b.timeouts.total, b.timeouts.first_token) == (60, 30, 5)
    assert a.retry.attempts == 3
    breaker = policy.backends["openai"].breaker
    assert (breaker.failures, breaker.window, breaker.cooldown) == (2, 60, 30)
    assert policy.store == "redis://:pw@cache.internal:6380/0" and draft.secrets["REDIS_PASSWORD"] == "pw"
    assert (
        policy.prices["anthropic/claude-x"].input == 3.0
        and policy.prices["anthropic/claude-x"].output == 15.0
    )
    assert "spaced-name" in policy.models
    for where in ("content_policy_fallbacks", "context_window_fallbacks.a"):
        assert said(draft, f"litellm_settings.{where}")
    assert said(draft, "router_settings.model_group_alias.b") == ["'b' is a model's name already"]
    assert said(draft, "router_settings.model_group_alias.nowhere")


def test_wildcards_become_the_models_that_are_known_or_named(tmp_path: Path) -> None:
    config = """
model_list:
- {model_name: "openai/*", litellm_params: {model: "openai/*"}}
- {model_name: "groq/*", litellm_params: {model: "groq/*"}}
- {model_name: openai/gpt-4o, litellm_params: {model: azure/own, api_base: "https://c.openai.azure.com"}}
- {model_name: "*", litellm_params: {model: "anthropic/*"}}
litellm_settings: {fallbacks: [{openai/gpt-4o: [openai/gpt-9]}]}
"""
    draft = imported(config, wanted=("groq/llama", "claude-new"))
    policy = served(draft, tmp_path)
    targets = {
        name: (model.targets[0].backend, model.targets[0].model) for name, model in policy.models.items()
    }
    assert targets["openai/gpt-4o"] == ("azure", "own")
    assert targets["openai/gpt-4.1-mini"] == ("openai", "gpt-4.1-mini")
    assert targets["openai/gpt-9"] == ("openai", "gpt-9")
    assert targets["groq/llama"] == ("groq", "llama")
    assert targets["claude-new"] == ("anthropic", "claude-new")
    assert targets["claude-opus-4-5"] == ("anthropic", "claude-opus-4-5")
    assert policy.models["openai/gpt-4o"].fallbacks == ("openai/gpt-9",)


SETTINGS = """
litellm_settings:
  cache: true
  cache_params: {type: redis, host: os.environ/REDIS_HOST, port: os.environ/REDIS_PORT, ttl: 600}
  callbacks: [prometheus, otel, langfuse, my_module.handler]
  max_budget: 100
  budget_duration: 30d
  set_verbose: true
general_settings: {master_key: os.environ/MASTER, database_url: os.environ/DATABASE_URL, alerting: [slack]}
mcp_servers: {x: {url: http://x}}
unheard_of: {a: 1}
"""


def test_other_settings(tmp_path: Path) -> None:
    draft = imported(one("model: gpt-4o", SETTINGS), env={"MASTER": "sk-1234"})
    policy = served(draft, tmp_path)
    assert policy.caches.exact is not None and policy.caches.exact.ttl == 600
    assert policy.store == "redis://cache.internal:6379/0"
    assert policy.tiers["default"].budget.usd_per_month == 100
    [master] = policy.keys
    assert (master.sha256, master.scopes) == (sha256(b"sk-1234").hexdigest(), ("inference", "admin"))
    assert policy.admin.enabled and policy.telemetry.endpoint == ""
    told = {note.where for note in draft.report.notes}
    assert {"general_settings.database_url", "general_settings.alerting", "mcp_servers", "unheard_of"} <= told
    assert "litellm_settings.set_verbose" not in told
    assert [what for what in said(draft, "litellm_settings.callbacks") if "my_module" in what]


def test_without_the_master_keys_variable_one_is_told_what_to_do() -> None:
    draft = imported(one("model: gpt-4o", "general_settings: {master_key: os.environ/MASTER}"))
    assert not draft.keys
    [note] = [note for note in draft.report.notes if note.where == "general_settings.master_key"]
    assert "tollgate keys create --id master --scopes inference admin" in note.todo


@pytest.mark.parametrize(
    ("span", "budget"),
    [
        ("1d", {"usd_per_day": 7.0}),
        ("24h", {"usd_per_day": 7.0}),
        ("30d", {"usd_per_month": 7.0}),
        ("1mo", {"usd_per_month": 7.0}),
        ("7d", {"usd_per_day": 7.0, "usd_per_month": 30.0}),
        (None, {"usd_per_month": 7.0}),
    ],
)
def test_budgets_of_other_spans(span: str | None, budget: dict[str, float]) -> None:
    more = f"litellm_settings: {{max_budget: 7, budget_duration: {span or 'null'}}}"
    assert imported(one("model: gpt-4o", more)).content["tiers"]["default"]["budget"] == budget


GUARDS = r"""
guardrails:
- guardrail_name: pii
  litellm_params:
    guardrail: presidio
    mode: [pre_call, post_call]
    default_on: true
    presidio_language: de
    pii_entities_config: {CREDIT_CARD: MASK, US_SSN: BLOCK, ZODIAC: MASK}
- guardrail_name: lakera
  litellm_params:
    {guardrail: lakera_v2, mode: during_call, default_on: true, api_key: os.environ/LAKERA_API_KEY, project_id: p}
- guardrail_name: moderation
  litellm_params: {guardrail: openai_moderation, mode: post_call, default_on: true, api_key: os.environ/OPENAI_API_KEY}
- guardrail_name: words
  litellm_params:
    guardrail: litellm_content_filter
    mode: pre_call
    default_on: true
    blocked_words: [{keyword: secret project, action: BLOCK}]
    patterns:
    - {pattern_type: regex, pattern: 'EMP-\d{6}', name: emp, action: MASK}
    - {pattern_type: prebuilt, pattern_name: email, action: MASK}
- guardrail_name: ours
  litellm_params:
    guardrail: generic_guardrail_api
    mode: pre_call
    default_on: true
    api_base: http://g:9000
    headers: {x-t: os.environ/T, authorization: Bearer open, x-plain: word}
- guardrail_name: optional
  litellm_params: {guardrail: hide-secrets, mode: pre_call}
- guardrail_name: other
  litellm_params: {guardrail: aporia, mode: pre_call, default_on: true}
- guardrail_name: watch
  litellm_params: {guardrail: presidio, mode: logging_only, default_on: true}
"""


def test_guardrails(tmp_path: Path) -> None:
    draft = imported(one("model: gpt-4o", GUARDS))
    guards = served(draft, tmp_path).guards
    assert {name: (guard.kind, guard.action, guard.on) for name, guard in guards.items()} == {
        "pii": ("pii", "redact", ("input", "output")),
        "pii-2": ("pii", "block", ("input", "output")),
        "lakera": ("webhook", "block", ("input",)),
        "moderation": ("webhook", "block", ("output",)),
        "words": ("topics", "block", ("input",)),
        "words-2": ("topics", "redact", ("input",)),
        "words-3": ("pii", "redact", ("input",)),
        "ours": ("webhook", "block", ("input",)),
        "watch": ("pii", "flag", ("input", "output")),
    }
    assert draft.content["guards"]["lakera"]["params"] == {"project_id": "p"}
    assert draft.content["guards"]["ours"]["url"] == "http://g:9000/beta/litellm_basic_guardrail_api"
    headers = draft.content["guards"]["ours"]["headers"]
    assert headers == {"x-t": "${T}", "authorization": "${GUARDRAIL_HEADER}", "x-plain": "word"}
    assert draft.secrets == {"GUARDRAIL_HEADER": "Bearer open"}
    for index in (5, 6):
        assert said(draft, f"guardrails[{index}]")


TEAM = {
    "team_id": "t1",
    "team_alias": "Research Team",
    "max_budget": 50.0,
    "budget_duration": "30d",
    "models": ["m"],
    "tpm_limit": 9,
}
KEY = {
    "token": HASH,
    "key_alias": "alice",
    "team_id": "t1",
    "models": [],
    "rpm_limit": 60,
    "expires": "2030-06-01T10:00:00Z",
}


def test_keys_and_teams(tmp_path: Path) -> None:
    rows = [
        TEAM,
        KEY,
        {
            "token": "b" * 64,
            "user_id": "bob@example.com",
            "models": ["m", "gone"],
            "max_budget": 3,
            "spend": 1.0,
        },
        {"token": "c" * 64, "models": ["gone"]},
        {"token": "d" * 64, "blocked": True},
        {"token": "e" * 64, "expires": "2029-12-31"},
        {
            "token": "sk-plain",
            "key_alias": "plain",
            "models": ["smart"],
            "metadata": {"model_rpm_limit": {"m": 1}},
        },
    ]
    config = (
        "model_list: [{model_name: m, litellm_params: {model: gpt-4o}, model_info: {access_groups: [smart]}}]"
    )
    draft = imported(config, rows=rows)
    policy = served(draft, tmp_path)
    alice, bob, plain = policy.keys
    assert (alice.id, alice.sha256, alice.tenant, alice.models) == ("alice", HASH, "Research-Team", ("m",))
    assert (alice.quotas.requests_per_minute, alice.expires) == (60, date(2030, 6, 2))
    assert (bob.tenant, bob.models, bob.budget.usd_per_month) == ("bob@example.com", ("m",), 2.0)
    assert (plain.sha256, plain.models) == (sha256(b"sk-plain").hexdigest(), ("m",))
    tenant = policy.tenants["Research-Team"]
    assert (tenant.budget.usd_per_month, tenant.quotas.tokens_per_minute) == (50.0, 9)
    assert sorted(said(draft, "LiteLLM_VerificationToken"))[:3] == [
        "1 key left out: blocked",
        "1 key left out: expired",
        "1 key left out: none of the models that it may use was imported",
    ]


def test_many_keys_are_a_table(tmp_path: Path) -> None:
    rows = [{"token": f"{n:064x}", "key_alias": "same"} for n in range(300)]
    policy = served(imported(one("model: gpt-4o"), rows=rows), tmp_path)
    assert len(policy.keys) == 300 and (tmp_path / "keys.jsonl").exists()


SQL = (
    'COPY public."LiteLLM_VerificationToken" (token, key_alias, models, team_id, blocked, metadata) FROM stdin;\n'
    f'{HASH}\ttab\\there\t{{m,"a b"}}\t\\N\tf\t{{"a": [1]}}\n\\.\n'
)
INSERT = (
    'INSERT INTO public."LiteLLM_VerificationToken" (token, key_alias, models, blocked, metadata) VALUES\n'
    f"  ('{HASH}', 'it''s', ARRAY['m','a b']::text[], NULL, '{{\"a\": [1]}}'::jsonb);\n"
)
CSV = f'token,key_alias,models,team_id,blocked,metadata\n{HASH},"a, b","{{m,""a b""}}",,f,"{{""a"": [1]}}"\n'


@pytest.mark.parametrize(
    ("text", "alias"),
    [
        (SQL, "tab\there"),
        (INSERT, "it's"),
        (CSV, "a, b"),
        (
            json.dumps(
                {"keys": [{"token": HASH, "key_alias": "j", "models": ["m", "a b"], "metadata": {"a": [1]}}]}
            ),
            "j",
        ),
        (
            json.dumps({"token": HASH, "key_alias": "l", "models": ["m", "a b"], "metadata": {"a": [1]}})
            + "\n",
            "l",
        ),
    ],
    ids=["copy", "insert", "csv", "json", "jsonl"],
)
def test_dumps_of_any_form_have_the_same_rows(text: str, alias: str) -> None:
    [row] = dumps.rows(text)
    assert (row["token"], row["key_alias"], row["models"], row["metadata"]) == (
        HASH,
        alias,
        ["m", "a b"],
        {"a": [1]},
    )
    assert not row.get("blocked")


def test_what_is_no_dump_is_said_so() -> None:
    with pytest.raises(dumps.DumpError):
        list(dumps.rows("hello"))


@pytest.mark.parametrize(
    "more",
    ["", SETTINGS, GUARDS],
    ids=["plain", "settings", "guards"],
)
def test_the_command_writes_a_folder_that_is_valid(
    more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(one("model: openai/x, api_base: os.environ/MY_BASE", more))
    out = tmp_path / "policies"
    assert main(["import", "litellm", str(config), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert f"tollgate serve --policies {out}" in told and "`MY_BASE`" in told
    assert (out / "IMPORT.md").read_text().startswith("# Imported from config.yaml\n")
    assert (out / "policy.schema.json").exists()
    for name in ("MY_BASE", "LAKERA_API_KEY", "OPENAI_API_KEY", "T", "GUARDRAIL_HEADER"):
        monkeypatch.setenv(name, "http://x.invalid")
    for name, value in STAND_INS.items():
        monkeypatch.setenv(name, value)
    assert main(["check", str(out)]) == 0
    assert main(["import", "litellm", str(config), "--out", str(out)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_the_command_tells_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, dump = tmp_path / "config.yaml", tmp_path / "keys.sql"
    config.write_text(
        "include: [more.yaml]\nmodel_list: [{model_name: m, litellm_params: {model: gpt-4o, tags: [a]}}]\n"
    )
    (tmp_path / "more.yaml").write_text(
        "model_list: [{model_name: n, litellm_params: {model: gpt-4o-mini}}]\n"
    )
    dump.write_text(SQL)
    arguments = [
        "import",
        "litellm",
        str(config),
        "--out",
        str(tmp_path / "o"),
        "--keys",
        str(dump),
        "--json",
    ]
    assert main(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["models"], told["keys"], told["problems"]) == (["m", "n"], ["tab-here"], [])
    assert "model_list[0].litellm_params.tags" in [note["where"] for note in told["notes"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not valid YAML"),
        ("- a", "is no configuration of LiteLLM"),
        ("a: 1", "no model that can be imported"),
    ],
)
def test_what_is_no_configuration(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert main(["import", "litellm", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "o")]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("params", "url"),
    [
        ("{host: h, password: 'p', username: 'u 1', ssl: true}", "rediss://u%201:p@h:6379/0"),
        (
            "{host: os.environ/REDIS_HOST, port: os.environ/REDIS_PORT}",
            "redis://${REDIS_HOST}:${REDIS_PORT}/0",
        ),
        ("{redis_startup_nodes: [{host: h, port: '7'}, {host: i, port: 8}]}", "redis+cluster://h:7,i:8"),
        (
            "{redis_startup_nodes: [{host: h, port: 7}], ssl: true, ssl_cert_reqs: null, ssl_check_hostname: false}",
            "rediss+cluster://h:7?ssl_cert_reqs=none&ssl_check_hostname=false",
        ),
        (
            "{service_name: s, sentinel_nodes: [[h, 26379], [i, 26379]], sentinel_password: p}",
            "redis+sentinel://h:26379,i:26379/s/0?sentinel_password=p",
        ),
    ],
    ids=["login", "variables", "cluster", "tls", "sentinel"],
)
def test_where_shared_state_lies(params: str, url: str) -> None:
    """In the policy, or, where it does not take such a URL, in the report."""
    draft = imported(one("model: gpt-4o", f"litellm_settings: {{cache: true, cache_params: {params}}}"))
    found = [str(draft.content.get("store")), *(note.todo for note in draft.report.notes)]
    for name, value in draft.secrets.items():
        found = [text.replace(f"${{{name}}}", value) for text in found]
    assert url == found[0] or any(f"`store: {url}`" in text for text in found[1:])
    assert "p@" not in str(draft.content) and "=p" not in str(draft.content)


def test_an_address_that_is_none_is_told() -> None:
    draft = imported(
        one("model: gpt-4o", "litellm_settings: {cache: true, cache_params: {host: 'no host', port: x}}")
    )
    assert "store" not in draft.content
    assert any("redis://HOST:PORT/0`" in note.todo for note in draft.report.notes)


def test_a_model_without_a_price_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        one("model: openai/nobodys, api_base: http://h/v1", "litellm_settings: {max_budget: 1}")
    )
    assert main(["import", "litellm", str(config), "--out", str(tmp_path / "o")]) == 0
    told = capsys.readouterr().out
    assert "`h/nobodys`: has no price in the policy or the catalogue: callers under a budget get 403" in told
    assert "h/nobodys" in (tmp_path / "o" / "IMPORT.md").read_text()
    assert main(["check", str(tmp_path / "o")]) == 0
    assert "requests under a budget are refused" in capsys.readouterr().out
