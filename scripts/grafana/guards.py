"""What guards find, and what caches save."""

from __future__ import annotations

from scripts.grafana.panels import RED, Dashboard, Row, graph, stat
from scripts.grafana.queries import HERE, INSTANCE, JOB, RATE, UP, quantile, rate, ratio


def hits(cache: str, looked: str) -> str:
    return ratio(rate("tollgate_cache_requests_total", f'{HERE}, cache="{cache}", result="hit"'), looked)


EXACT = hits("exact", rate("tollgate_cache_requests_total", f'{HERE}, cache="exact", result=~"hit|miss"'))
# The results of the semantic cache say why it did not hit; each look-up is timed.
SEMANTIC = hits("semantic", rate("tollgate_cache_seconds_count", f'{HERE}, cache="semantic"'))

GUARDS = Dashboard(
    "tollgate-guards-caches",
    "Tollgate / Guards and caches",
    "What guards find and how long they take; what caches save.",
    (JOB, INSTANCE),
    (
        Row(
            "Guards",
            (
                graph(
                    "Findings",
                    "That guards acted on, by guard, direction and action.",
                    "cps",
                    (
                        rate("tollgate_guard_hits_total", HERE, "guard", "direction", "action"),
                        "{{guard}} {{direction}}: {{action}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Scans",
                    "Of texts: clean, found, open (left to the next check), or unscanned.",
                    "cps",
                    (rate("tollgate_guard_scans_total", HERE, "guard", "outcome"), "{{guard}}: {{outcome}}"),
                    stacked=True,
                ),
                graph(
                    "Time of a scan, p95",
                    "By guard and check.",
                    "s",
                    (
                        quantile(0.95, "tollgate_guard_scan_seconds", HERE, "guard", "check"),
                        "{{guard}}: {{check}}",
                    ),
                ),
                graph(
                    "Answers cut",
                    "Share of the answers that a guard looked after.",
                    "percentunit",
                    (
                        f"sum by (guard) (rate(tollgate_guard_cuts_total{{{HERE}}}[{RATE}])) / sum by (guard) (rate(tollgate_guard_answers_total{{{HERE}}}[{RATE}]))",
                        "{{guard}}",
                    ),
                ),
                graph(
                    "Time to cut, p95",
                    "From the arrival of the first unsafe character.",
                    "s",
                    (quantile(0.95, "tollgate_guard_time_to_cut_seconds", HERE, "guard"), "{{guard}}"),
                ),
                graph(
                    "Characters sent before a cut",
                    "From the first unsafe one on, a cut.",
                    "short",
                    (
                        f"{rate('tollgate_guard_leaked_characters_total', HERE)} / {rate('tollgate_guard_cuts_total', HERE)}",
                        "characters",
                    ),
                ),
                graph(
                    "Not judged",
                    "Texts whose check failed: refused or passed, as the guard's policy says.",
                    "cps",
                    (
                        f"{rate('tollgate_guard_unscanned_total', HERE, 'guard', 'direction')} or vector(0)",
                        "{{guard}} {{direction}}",
                    ),
                    levels=((0.01, RED),),
                ),
                graph(
                    "For review",
                    "Findings of guards that only flag: written, skipped, or lost.",
                    "cps",
                    (
                        rate("tollgate_guard_reviews_total", HERE, "guard", "outcome"),
                        "{{guard}}: {{outcome}}",
                    ),
                    stacked=True,
                ),
                stat(
                    "Sidecar",
                    "The process with the small models; 1 where the policy needs none.",
                    "none",
                    f"min(tollgate_sidecar_up{{{HERE}}}) or vector(1)",
                    width=8,
                    height=8,
                    **UP,
                ),
            ),
        ),
        Row(
            "Caches",
            (
                stat(
                    "Exact hits",
                    "Share of the requests that were looked up.",
                    "percentunit",
                    EXACT,
                    width=6,
                    decimals=1,
                ),
                stat(
                    "Semantic hits",
                    "Share of the requests that were looked up.",
                    "percentunit",
                    SEMANTIC,
                    width=6,
                    decimals=1,
                ),
                stat(
                    "Answers from caches",
                    "In 24 hours.",
                    "short",
                    f'sum(increase(tollgate_cache_requests_total{{{HERE}, result="hit"}}[1d]))',
                    width=6,
                    decimals=0,
                ),
                stat(
                    "Saved",
                    "US dollars in 24 hours, as if a cached answer had cost what an answer costs on average.",
                    "currencyUSD",
                    f'sum(increase(tollgate_cache_requests_total{{{HERE}, result="hit"}}[1d])) * sum(increase(tollgate_cost_dollars_total{{{HERE}, purpose="answer"}}[1d])) / sum(increase(tollgate_requests_total{{{HERE}, status="200", backend!=""}}[1d]))',
                    width=6,
                    decimals=2,
                ),
                graph(
                    "Exact cache",
                    "What it did for requests.",
                    "reqps",
                    (rate("tollgate_cache_requests_total", f'{HERE}, cache="exact"', "result"), "{{result}}"),
                    stacked=True,
                ),
                graph(
                    "Semantic cache",
                    "What it did for requests.",
                    "reqps",
                    (
                        rate("tollgate_cache_requests_total", f'{HERE}, cache="semantic"', "result"),
                        "{{result}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Time to look, p95",
                    "In the exact or the semantic cache.",
                    "s",
                    (quantile(0.95, "tollgate_cache_seconds", HERE, "cache"), "{{cache}}"),
                ),
            ),
        ),
    ),
)
