"""What models cost."""

from __future__ import annotations

from scripts.grafana.panels import RED, Dashboard, Row, bars, graph, stat
from scripts.grafana.queries import ANSWERED, HERE, INSTANCE, JOB, MODEL, OF_MODEL, SHARES, rate

COST = Dashboard(
    "tollgate-cost",
    "Tollgate / Cost",
    "What models cost, by the price table; to the nano-dollar it is in the ledger (`tollgate usage`).",
    (JOB, INSTANCE, MODEL),
    (
        Row(
            "Now",
            (
                stat(
                    "An hour",
                    "US dollars at the present rate.",
                    "currencyUSD",
                    f"3600 * {rate('tollgate_cost_dollars_total', OF_MODEL)}",
                    decimals=2,
                ),
                stat(
                    "24 hours",
                    "US dollars.",
                    "currencyUSD",
                    f"sum(increase(tollgate_cost_dollars_total{{{OF_MODEL}}}[1d]))",
                    decimals=2,
                ),
                stat(
                    "A month at this rate",
                    "US dollars: 30 times the last 24 hours.",
                    "currencyUSD",
                    f"30 * sum(increase(tollgate_cost_dollars_total{{{OF_MODEL}}}[1d]))",
                    decimals=0,
                ),
                stat(
                    "A request",
                    "US dollars a request that was answered.",
                    "currencyUSD",
                    f"{rate('tollgate_cost_dollars_total', OF_MODEL)} / {rate('tollgate_requests_total', ANSWERED)}",
                    decimals=5,
                ),
                stat(
                    "A million tokens",
                    "US dollars, of tokens in and out together.",
                    "currencyUSD",
                    f"1e6 * {rate('tollgate_cost_dollars_total', OF_MODEL)} / {rate('tollgate_tokens_total', OF_MODEL)}",
                    decimals=2,
                ),
                stat(
                    "Over budget",
                    "Tenants whose budget of a day or a month is used up.",
                    "short",
                    f"max(tollgate_tenants_over_budget{{{HERE}}}) or vector(0)",
                    levels=((1, RED),),
                ),
            ),
        ),
        Row(
            "Spending",
            (
                graph(
                    "By model",
                    "US dollars an hour.",
                    "currencyUSD",
                    (f"3600 * {rate('tollgate_cost_dollars_total', OF_MODEL, 'model')}", "{{model}}"),
                    stacked=True,
                ),
                graph(
                    "By tenant",
                    "US dollars an hour; one line without a name where tenants are not told apart.",
                    "currencyUSD",
                    (
                        f"topk(20, 3600 * {rate('tollgate_cost_dollars_total', OF_MODEL, 'tenant')})",
                        "{{tenant}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "By purpose",
                    "US dollars an hour: answers, discarded steps of cascades, failed attempts, shadow copies, judges.",
                    "currencyUSD",
                    (f"3600 * {rate('tollgate_cost_dollars_total', OF_MODEL, 'purpose')}", "{{purpose}}"),
                    stacked=True,
                ),
                graph(
                    "Tokens by purpose",
                    "A second, in and out.",
                    "short",
                    (
                        rate("tollgate_tokens_total", OF_MODEL, "purpose", "direction"),
                        "{{purpose}} {{direction}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Budgets",
                    "Used share of each tenant's; of the fullest where tenants are not told apart.",
                    "percentunit",
                    (
                        f"max by (tenant, window) (tollgate_budget_used_ratio{{{HERE}}})",
                        "{{tenant}}, {{window}}",
                    ),
                    levels=SHARES,
                ),
                bars(
                    "24 hours by model",
                    "US dollars.",
                    "currencyUSD",
                    f"sort_desc(sum by (model) (increase(tollgate_cost_dollars_total{{{OF_MODEL}}}[1d])))",
                    "{{model}}",
                    decimals=2,
                ),
            ),
        ),
    ),
    range="now-24h",
)
