"""Packages of extras that the policy's own keys need, and that are not installed."""

from __future__ import annotations

from contextlib import suppress

from pydantic import ValidationError

from gateway.policy import missing_extras
from gateway.policy.content import mapping_at
from gateway.policy.problems import Diagnostic
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import LedgerSettings


def ledger_without_driver(draft: Draft) -> Findings:
    with suppress(ValidationError):  # which is said elsewhere
        ledger = LedgerSettings.model_validate(mapping_at(draft.content, "ledger"))
        if (why := missing_extras.unrecorded(ledger)) is not None:
            yield Diagnostic(("ledger", "store"), why)


def feature_without_extra(valid: Valid) -> Findings:
    for path, why in missing_extras.without(valid.policy):
        yield Diagnostic(path, why)
