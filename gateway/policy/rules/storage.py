"""``files``, ``ledger``, ``store`` and ``caches``: settings of a place that is not used."""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.policy.content import mapping_at
from gateway.policy.problems import Diagnostic, KeyPath
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import Key, Tenant, Tier


def verifier_of_another_embedder(draft: Draft) -> Findings:
    """What an engine serves is found out when it answers."""
    embedder = mapping_at(draft.content, "sidecar").get("embedder", "builtin")
    if embedder == "builtin" or (isinstance(embedder, dict) and "backend" in embedder):
        return
    semantic = mapping_at(draft.content, "caches").get("semantic")
    if isinstance(semantic, dict) and semantic.get("mode", "on") != "off":
        message = "its verifier was trained for 'sidecar.embedder: builtin'; leave that key out, or write 'mode: off'"
        yield Diagnostic(("caches", "semantic"), message)


def files_elsewhere(valid: Valid) -> Findings:
    """Where files would be, if they were not somewhere else."""
    policy = valid.policy
    written = valid.written.get("files") or {}
    if "s3" in written and policy.files.bucket is None:
        yield Diagnostic(("files", "s3"), "has no effect without a bucket; write 'store: s3://BUCKET'")
    if "path" in written and policy.files.bucket is not None:
        yield Diagnostic(("files", "path"), f"has no effect with 'store: {policy.files.store}'; remove it")


def files_of_one_replica(valid: Valid) -> Findings:
    """A database that several replicas share, and contents that they do not."""
    policy = valid.policy
    files = policy.files
    if files.enabled and policy.ledger.store != "sqlite" and files.bucket is None and files.path[0] != "/":
        yield Diagnostic(
            ("ledger", "store"),
            "has the names of files for all replicas, and each keeps their contents in its own state folder: write "
            "'files: {store: s3://BUCKET}', or in 'files: {path: …}' a folder that all of them mount",
        )


def recordings_of_one_replica(valid: Valid) -> Findings:
    """The same of segments, and of the secret that wraps everybody's data keys."""
    policy, record = valid.policy, valid.policy.record
    if not record.enabled or policy.ledger.store == "sqlite":
        return
    if policy.files.bucket is None and record.path[0] != "/":
        yield Diagnostic(
            ("record", "path"),
            "is in each replica's own state folder, and 'ledger.store' has the names of its segments for all of them: "
            "write 'files: {store: s3://BUCKET}', or a folder that all of them mount",
        )
    if record.key_file is None:
        yield Diagnostic(
            ("record", "key_file"),
            "is missing: each replica would make a secret of its own, and 'ledger.store' has data keys that all of "
            "them are to open; name a file that holds the same for all ('openssl rand -hex 32' makes one)",
        )


def store_failure_of_no_store(valid: Valid) -> Findings:
    if "on_store_failure" in valid.written and valid.policy.store == "memory":
        message = (
            "has no effect with 'store: memory', which is never away; write 'store: redis://…', or remove it"
        )
        yield Diagnostic(("on_store_failure",), message)


def ledger_elsewhere(valid: Valid) -> Findings:
    """Settings of the other of the two places where the ledger may be."""
    ledger = valid.policy.ledger
    written = ledger.model_fields_set
    if ledger.password_file is not None and ledger.store == "sqlite":
        message = "has no effect with 'store: sqlite', which takes no password; write 'store: postgresql://…'"
        yield Diagnostic(("ledger", "password_file"), message)
    elif ledger.password_file is not None and urlsplit(ledger.store).password is not None:
        message = "has no effect beside the password in the URL of 'store'; remove one of them"
        yield Diagnostic(("ledger", "password_file"), message)
    if "path" in written and ledger.store != "sqlite":
        yield Diagnostic(("ledger", "path"), "has no effect with a PostgreSQL server; remove it")


def budgets_without_a_record(valid: Valid) -> Findings:
    """Counters in memory begin with their process, and are raised from the ledger then."""
    policy = valid.policy
    owners: tuple[Key | Tenant | Tier, ...] = (*policy.keys, *policy.tenants.values(), *policy.tiers.values())
    bound = any(
        limit is not None
        for owner in owners
        for limit in (owner.budget.usd_per_day, owner.budget.usd_per_month, owner.quotas.tokens_per_day)
    )
    if bound and not policy.ledger.enabled and policy.store == "memory":
        yield Diagnostic(
            ("ledger", "enabled"),
            "makes budgets, and limits of tokens by the day, begin anew with each start, as nothing is recorded: write "
            "'true', or 'store: redis://…'",
        )


def entry_beyond_its_store(valid: Valid) -> Findings:
    """One that may be longer than all of them together are never kept."""
    policy = valid.policy
    places: tuple[tuple[KeyPath, int, str, int], ...] = (
        *(
            (("caches", kind, "max_entry"), cache.max_entry, "max_bytes", cache.max_bytes)
            for kind, cache in (("exact", policy.caches.exact), ("semantic", policy.caches.semantic))
            if cache is not None and policy.where_caches_are == "memory"
        ),
        *(
            (
                (
                    ("responses", "max_entry"),
                    policy.responses.max_entry,
                    "max_bytes",
                    policy.responses.max_bytes,
                ),
            )
            if policy.store == "memory"
            else ()
        ),
        (("files", "max_bytes"), policy.files.max_bytes, "max_tenant_bytes", policy.files.max_tenant_bytes),
    )
    for path, entry, key, whole in places:
        if entry > whole:
            message = f"has no effect beyond '{key}': {entry} bytes are more than the {whole} of all together"
            yield Diagnostic(path, message)


def batches_without_files(valid: Valid) -> Findings:
    """A batch is a file of requests."""
    policy = valid.policy
    written = policy.batches.model_fields_set
    if written and policy.batches.enabled and not policy.files.enabled:
        message = "has no effect with 'files: {enabled: false}': a batch's requests and results are files"
        yield Diagnostic(("batches",), message)
