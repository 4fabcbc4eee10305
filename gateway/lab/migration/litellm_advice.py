"""Settings of LiteLLM's that have no counterpart: what is so here, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.lab.migration.report import Report
from gateway.lab.migration.source import Source

TOP_ADVICE: Mapping[str, tuple[str, str]] = {
    "mcp_servers": ("no MCP servers are served", "callers and providers reach them by themselves"),
    "mcp_tools": ("no MCP servers are served", "callers and providers reach them by themselves"),
    "search_tools": (
        "the gateway searches nothing itself",
        "use a model whose provider searches (`extras: [web_search]`)",
    ),
    "sandbox_tools": ("the gateway runs no code itself", "use a model whose provider does"),
    "vector_store_registry": ("no vector stores are asked", "let callers ask them, and send what they found"),
    "files_settings": ("files are kept by the gateway itself", "`files`: docs/files.md"),
    "finetune_settings": ("no fine-tuning is passed on", "ask the provider"),
    "batch_settings": ("batches are run by the gateway itself", "`batches`: docs/batches.md"),
    "policies": (
        "guards are not chained",
        "write each as a guard of its own, with `models`, `keys` or `tenants`",
    ),
    "policy_attachments": (
        "guards name what they look after",
        "write `models`, `keys` or `tenants` of each guard",
    ),
    "prompts": ("no prompts are kept", "`shared_prompts` are those that models may keep ready"),
    "assistant_settings": (
        "no assistants are served",
        "/v1/responses keeps conversations: docs/responses.md",
    ),
    "agent_list": ("no agents are served", ""),
    "callback_settings": ("traces are sent where `telemetry` says", ""),
}


DEPLOYMENT_ADVICE: Mapping[str, tuple[str, str]] = {
    "tags": ("tags do not choose among deployments", "give each tag's deployments a model name of their own"),
    "tag_regex": (
        "headers do not choose among deployments",
        "give each kind of caller a key with `models` of its own",
    ),
    "max_budget": ("deployments have no budgets", "budget the keys, tenants or tiers that use it"),
    "budget_duration": ("deployments have no budgets", "budget the keys, tenants or tiers that use it"),
    "organization": ("no organization is sent", "use a key of that organization's project"),
    "extra_headers": ("backends send no further headers", ""),
    "aws_role_name": (
        "roles are assumed by a profile of AWS's files",
        "name one with `role_arn` in `aws.profile`",
    ),
    "azure_ad_token": (
        "Entra tokens are fetched, not given",
        "write `entra` for the backend: docs/providers.md",
    ),
    "additional_drop_params": (
        "parameters that a backend is not known to take are left out by themselves",
        "",
    ),
    "use_in_pass_through": ("LiteLLM's pass-through paths are not served", "ask the gateway's own paths"),
}
ROUTER_ADVICE: Mapping[str, tuple[str, str]] = {
    "content_policy_fallbacks": (
        "what a provider's content policy refuses goes to the caller as it is",
        "route such callers to the other model by its name, or guard the requests yourself: docs/guards.md",
    ),
    "retry_policy": (
        "kinds of errors are not counted apart",
        "`retry` of a model says how often it is tried at all",
    ),
    "model_group_retry_policy": (
        "kinds of errors are not counted apart",
        "`retry` of a model says how often it is tried",
    ),
    "allowed_fails_policy": (
        "kinds of errors are not counted apart",
        "`breaker` of a backend has one number of failures",
    ),
    "routing_strategy_args": ("strategies have no parameters", ""),
    "routing_groups": ("strategies are a model's own", "write `select` for each model"),
    "enable_tag_filtering": (
        "tags do not choose among deployments",
        "give each tag's deployments a model of their own",
    ),
    "disable_cooldowns": (
        "backends that keep failing are left alone for a while",
        "raise `breaker.failures` of the backend for more patience",
    ),
    "tag_filtering_match_any": (
        "tags do not choose among deployments",
        "give each tag's deployments a model of their own",
    ),
    "provider_budget_config": (
        "providers have no budgets",
        "budget the keys, tenants or tiers that use them",
    ),
    "cache_responses": ("caches are in `caches`", "write `caches: {exact: {}}`"),
    "model_group_affinity_config": (
        "prompts stay with who served their beginning",
        "`select: prefix_affinity` of a model",
    ),
}
LITELLM_ADVICE: Mapping[str, tuple[str, str]] = {
    "langfuse_default_tags": ("no tags are sent", ""),
    "default_team_settings": (
        "teams have no loggers of their own",
        "`telemetry` sends traces to one receiver",
    ),
    "default_internal_user_params": (
        "there are no users beside keys and tenants",
        "budget tenants: policies/README.md",
    ),
    "max_internal_user_budget": (
        "there are no users beside keys and tenants",
        "budget tenants: policies/README.md",
    ),
    "default_key_generate_params": ("keys are made by `tollgate keys create`", "name the limits there"),
    "upperbound_key_generate_params": (
        "keys are made by operators",
        "name the limits in `tollgate keys create`",
    ),
    "mcp_semantic_tool_filter": ("tools go to the model as they are", ""),
    "websearch_interception_params": ("searches are the provider's own, or the caller's", ""),
    "code_interpreter_interception_params": ("code runs at the provider, or the caller", ""),
    "cost_discount_config": ("prices are what `prices` says", "write the discounted prices there"),
    "public_model_groups": ("each key lists its models", "name them in `keys[].models`"),
}
GENERAL_ADVICE: Mapping[str, tuple[str, str]] = {
    "database_url": (
        "LiteLLM's database is not read",
        "dump its keys and import again with --keys (docs/lab.md); replicas share records by `ledger.store`",
    ),
    "store_model_in_db": (
        "models are in the policy alone",
        "export those of the database into a config.yaml and import that",
    ),
    "custom_auth": ("no code of yours decides who may call", "use keys, or tokens of an issuer (`jwt`)"),
    "enable_jwt_auth": ("issuers are told by `jwt`", "write issuer, audience and jwks: policies/README.md"),
    "litellm_jwtauth": (
        "issuers are told by `jwt`",
        "write issuer, audience and the claims of tenant and models",
    ),
    "pass_through_endpoints": ("no other paths are passed on", "docs/pass_through.md lists those that are"),
    "alerting": (
        "no messages are sent to Slack",
        "`callbacks` tell a server of yours of budgets, breakers and guards",
    ),
    "alerting_threshold": ("slow answers are in /metrics", "deploy/prometheus has alerts"),
    "allowed_ips": ("addresses are a key's", "write `allow_ips` for each key"),
    "max_parallel_requests": (
        "concurrency is limited for keys, tenants, tiers and backends",
        "`quotas.concurrent_requests`",
    ),
    "global_max_parallel_requests": (
        "concurrency is limited for keys, tenants, tiers and backends",
        "`tiers.default.quotas`",
    ),
    "custom_sso": ("operators sign in by a key or an OpenID provider", "`admin.oidc`: docs/admin.md"),
    "otel": ("traces are sent where `telemetry` says", "write `telemetry: {endpoint: …}`"),
    "budget_alert_ttl": ("no messages are sent to Slack", "`callbacks` tell a server of yours of budgets"),
    "control_plane_url": ("replicas share a Redis server and a PostgreSQL server", "`store`, `ledger.store`"),
}
QUIET_ROUTER = (
    "enable_pre_call_checks",
    "set_verbose",
    "debug_level",
    "client_ttl",
    "fallback_on_unsupported_params",
)
QUIET_LITELLM = (
    *(
        "set_verbose",
        "drop_params",
        "json_logs",
        "turn_off_message_logging",
        "telemetry",
        "modify_params",
    ),
    *(
        "redact_user_api_key_info",
        "enable_preview_features",
        "include_cost_in_streaming_usage",
        "request_timeout_type",
    ),
    *(
        "require_auth_for_metrics_endpoint",
        "prometheus_initialize_budget_metrics",
        "store_audit_logs",
        "force_ipv4",
    ),
)
QUIET_GENERAL = (
    *(
        "background_health_checks",
        "health_check_interval",
        "disable_spend_logs",
        "proxy_batch_write_at",
        "completion_model",
    ),
    *(
        "database_connection_pool_limit",
        "database_connection_timeout",
        "disable_prisma_schema_update",
        "infer_model_from_keys",
    ),
    *(
        "allow_requests_on_db_unavailable",
        "disable_error_logs",
        "use_redis_transaction_buffer",
        "forward_openai_org_id",
    ),
    *(
        "proxy_budget_rescheduler_min_time",
        "proxy_budget_rescheduler_max_time",
        "store_prompts_in_spend_logs",
        "salt_key",
    ),
)


def tell_unverified(settings: Source, report: Report) -> None:
    """``ssl_verify: false``, or a file of authorities: a false value says something here."""
    given = settings.get("ssl_verify")
    if given is not None and given is not True:
        report.dropped(
            settings.at("ssl_verify"),
            "certificates of servers are always verified",
            "put a server's own authority into a file that the variable SSL_CERT_FILE names",
        )
