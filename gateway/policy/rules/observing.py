"""``callbacks``, ``telemetry`` and ``metrics``: what is never told."""

from __future__ import annotations

from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from gateway.policy.limited import has_budgets
from gateway.policy.problems import Diagnostic, suggestion
from gateway.policy.rules.subject import Findings, Valid


def shares_of_no_budget(valid: Valid) -> Findings:
    for index, callback in enumerate(valid.policy.callbacks):
        written = callback.model_fields_set
        if "budget_at" in written and "budget" not in callback.events:
            message = "has no effect without 'budget' among the 'events'; add it, or remove this key"
            yield Diagnostic(("callbacks", index, "budget_at"), message)
        elif not has_budgets(valid.policy) and (
            "budget_at" in written or ("events" in written and "budget" in callback.events)
        ):
            key = "budget_at" if "budget_at" in written else "events"
            message = "nothing is told of budgets: no key, tenant or tier has one"
            yield Diagnostic(("callbacks", index, key), message)


def path_over_grpc(valid: Valid) -> Findings:
    telemetry = valid.policy.telemetry
    if telemetry.protocol == "grpc" and (path := urlsplit(telemetry.endpoint).path):
        message = f"'{path}' has no effect with 'protocol: grpc', which asks a host and port; remove it"
        yield Diagnostic(("telemetry", "endpoint"), message)


def scores_nowhere(valid: Valid) -> Findings:
    """Nobody knows where the receiver's API is."""
    telemetry = valid.policy.telemetry
    kind = telemetry.scores.receiver
    if telemetry.endpoint and kind != "none" and telemetry.score_address is None:
        message = (
            f"'{kind}' takes scores over HTTP, and where is not to be seen from 'telemetry.endpoint'; write "
            "'scores: {endpoint: https://…}'"
        )
        yield Diagnostic(("telemetry", "scores", "receiver"), message)


def scores_of_nothing(valid: Valid) -> Findings:
    telemetry = valid.policy.telemetry
    if telemetry.scores.receiver == "none":
        for key in sorted(telemetry.scores.model_fields_set - {"receiver"}):
            message = "has no effect without 'receiver'; say who takes scores, or remove it"
            yield Diagnostic(("telemetry", "scores", key), message)
    elif telemetry.endpoint and not telemetry.traces:
        message = "has no effect with 'traces: false': scores belong to traces; remove one of them"
        yield Diagnostic(("telemetry", "scores", "receiver"), message)


def most_of_no_tenants(valid: Valid) -> Findings:
    metrics = valid.policy.metrics
    if metrics.tenants is False and "max_tenants" in metrics.model_fields_set:
        message = "has no effect with 'tenants: false'; remove one of them"
        yield Diagnostic(("metrics", "max_tenants"), message)


def evaluation_of_no_model(valid: Valid) -> Findings:
    evaluation = valid.policy.evaluation
    if evaluation is None:
        return
    names = tuple(valid.policy.models)
    for index, pattern in enumerate(evaluation.models):
        if not any(fnmatchcase(name, pattern) for name in names):
            message = (
                f"no model matches '{pattern}'{suggestion(pattern, names)}; its answers would not be judged"
            )
            yield Diagnostic(("evaluation", "models", index), message)
