"""What a policy asks for and cannot be had, as the extra that it takes is not installed.

Where requests would go unrecorded the policy is refused. What else is missing is said, and the rest is served.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway import packages
from gateway.policy.problems import KeyPath
from gateway.policy.schema import LedgerSettings, OpenAIBackend, Policy


def unrecorded(ledger: LedgerSettings) -> str | None:
    """Why no request can be recorded, or None."""
    why = _without_driver(ledger) if ledger.enabled else None
    return f"nothing can be recorded: {why}" if why else None


def without(policy: Policy) -> Iterator[tuple[KeyPath, str]]:
    """What else does not work, at the key that asks for it."""
    files, ledger, telemetry = policy.files, policy.ledger, policy.telemetry
    if files.enabled and not ledger.enabled and (why := _without_driver(ledger)):
        yield ("ledger", "store"), f"no files and batches can be kept: {why}"
    if files.enabled and files.bucket is not None and packages.missing(packages.S3):
        yield ("files", "store"), f"no files can be kept: {packages.no_s3()}"
    if telemetry.endpoint and packages.missing(packages.OTEL[telemetry.protocol]):
        yield ("telemetry", "endpoint"), f"no traces are sent: {packages.no_otel()}"
    if packages.missing(packages.KV_EVENTS):
        for name, backend in policy.backends.items():
            if isinstance(backend, OpenAIBackend) and backend.kv_events is not None:
                yield ("backends", name, "kv_events"), f"no events are read: {packages.no_kv_events()}"


def _without_driver(ledger: LedgerSettings) -> str | None:
    return packages.unusable_postgres() if ledger.store != "sqlite" else None
