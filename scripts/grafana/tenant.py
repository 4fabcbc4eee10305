"""What one tenant asks, gets, waits and pays."""

from __future__ import annotations

from scripts.grafana.panels import RED, YELLOW, Dashboard, Row, graph, stat
from scripts.grafana.queries import (
    HERE,
    INSTANCE,
    JOB,
    OF_TENANT,
    SHARES,
    TENANT,
    quantile,
    quantiles,
    rate,
    ratio,
)

TENANTS = Dashboard(
    "tollgate-tenant",
    "Tollgate / A tenant",
    "What one tenant asks, gets, waits and pays. Needs `metrics: {tenants: true}` in the policy.",
    (JOB, INSTANCE, TENANT),
    (
        Row(
            "Now",
            (
                stat("Requests", "A second.", "reqps", rate("tollgate_tenant_requests_total", OF_TENANT)),
                stat(
                    "Share of all requests",
                    "Of the requests of all tenants.",
                    "percentunit",
                    ratio(
                        rate("tollgate_tenant_requests_total", OF_TENANT),
                        rate("tollgate_requests_total", HERE),
                    ),
                    decimals=1,
                ),
                stat(
                    "Errors",
                    "Share of its requests that ended with a status from 500 on.",
                    "percentunit",
                    ratio(
                        rate("tollgate_tenant_requests_total", f'{OF_TENANT}, status=~"5.."'),
                        rate("tollgate_tenant_requests_total", OF_TENANT),
                    ),
                    levels=((0.005, YELLOW), (0.02, RED)),
                    decimals=2,
                ),
                stat(
                    "Time to first token, p95",
                    "From arrival to the first chunk.",
                    "s",
                    quantile(0.95, "tollgate_tenant_time_to_first_token_seconds", OF_TENANT),
                    levels=((1, YELLOW), (2.5, RED)),
                ),
                stat(
                    "Spent in a day",
                    "US dollars in the last 24 hours.",
                    "currencyUSD",
                    f"sum(increase(tollgate_cost_dollars_total{{{OF_TENANT}}}[1d]))",
                    decimals=2,
                ),
                stat(
                    "Budget used",
                    "Of the day or the month, whichever is fuller; 0 without a budget.",
                    "percentunit",
                    f"max(tollgate_budget_used_ratio{{{OF_TENANT}}}) or vector(0)",
                    levels=SHARES,
                    decimals=0,
                ),
            ),
        ),
        Row(
            "Requests",
            (
                graph(
                    "Requests by status",
                    "499 is a client that left.",
                    "reqps",
                    (rate("tollgate_tenant_requests_total", OF_TENANT, "status"), "{{status}}"),
                    stacked=True,
                ),
                graph(
                    "Requests by tenant",
                    "Tenants beyond `max_tenants` share `other`.",
                    "reqps",
                    (
                        f"topk(20, {rate('tollgate_tenant_requests_total', OF_TENANT, 'tenant')})",
                        "{{tenant}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Refused requests",
                    "By a limit, a budget, a guard, or for a mistake.",
                    "reqps",
                    (rate("tollgate_refused_requests_total", OF_TENANT, "reason"), "{{reason}}"),
                    stacked=True,
                ),
                graph(
                    "Time to first token",
                    "From arrival to the first chunk.",
                    "s",
                    *quantiles("tollgate_tenant_time_to_first_token_seconds", OF_TENANT),
                ),
                graph(
                    "Tokens",
                    "A second, by direction, whatever they were for.",
                    "short",
                    (rate("tollgate_tenant_tokens_total", OF_TENANT, "direction"), "{{direction}}"),
                ),
                graph(
                    "Tokens by tenant",
                    "In and out, a second.",
                    "short",
                    (f"topk(20, {rate('tollgate_tenant_tokens_total', OF_TENANT, 'tenant')})", "{{tenant}}"),
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Spending",
            (
                graph(
                    "Spending by model",
                    "US dollars an hour.",
                    "currencyUSD",
                    (f"3600 * {rate('tollgate_cost_dollars_total', OF_TENANT, 'model')}", "{{model}}"),
                    stacked=True,
                    width=12,
                ),
                graph(
                    "Budgets",
                    "Used share.",
                    "percentunit",
                    (
                        f"max by (tenant, window) (tollgate_budget_used_ratio{{{OF_TENANT}}})",
                        "{{tenant}}, {{window}}",
                    ),
                    levels=SHARES,
                    width=12,
                ),
            ),
        ),
    ),
)
