"""Packages of extras that the policy's own keys need, and that are not installed."""

from __future__ import annotations

from gateway import packages
from gateway.policy.problems import Diagnostic
from gateway.policy.rules.subject import Findings, Valid


def ledger_without_driver(valid: Valid) -> Findings:
    ledger = valid.policy.ledger
    if ledger.enabled and ledger.store != "sqlite" and packages.missing(packages.POSTGRES):
        message = f"nothing is recorded, and the gateway does not become ready: {packages.no_postgres()}"
        yield Diagnostic(("ledger", "store"), message)


def files_without_client(valid: Valid) -> Findings:
    files = valid.policy.files
    if files.enabled and files.bucket is not None and packages.missing(packages.S3):
        yield Diagnostic(("files", "store"), f"no files can be kept: {packages.no_s3()}")


def telemetry_without_exporter(valid: Valid) -> Findings:
    if valid.policy.telemetry.endpoint and packages.missing(packages.OTEL):
        yield Diagnostic(("telemetry", "endpoint"), f"no traces are sent: {packages.no_otel()}")
