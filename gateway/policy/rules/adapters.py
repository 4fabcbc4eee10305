"""``adapters``: servers that cannot have any, or list none."""

from __future__ import annotations

from gateway.policy.content import mapping_at, mappings_at
from gateway.policy.problems import Diagnostic, suggestion
from gateway.policy.rules.subject import Draft, Findings


def adapters_of_no_server(draft: Draft) -> Findings:
    """Backends that are there and load adapters, and the way in which they get them."""
    backends = mappings_at(draft.content, "backends")
    adapters = mapping_at(draft.content, "adapters")
    if adapters and not adapters.get("servers") and not adapters.get("listed"):
        yield Diagnostic(
            ("adapters",),
            "names no backend: give it 'servers', which load what tenants upload, or 'listed', whose own are asked",
        )
    if adapters.get("servers") and mapping_at(draft.content, "files").get("enabled") is False:
        yield Diagnostic(
            ("adapters",), "needs /v1/files, by which adapters come; remove 'files.enabled: false'"
        )
    for name, server in mappings_at(adapters, "servers").items():
        backend, path = backends.get(name), ("adapters", "servers", name)
        if backend is None:
            message = f"no backend is named '{name}'{suggestion(name, tuple(backends))}"
            yield Diagnostic(path, message)
        elif backend.get("kind") == "openai" and not server.get("folder"):
            message = (
                "needs 'folder': where this server mounts 'adapters.folder', from which it loads adapters"
            )
            yield Diagnostic(path, message)
        elif backend.get("kind") == "openai" and not adapters.get("folder"):
            yield Diagnostic(("adapters",), f"needs 'folder': what '{name}' mounts, and the gateway fills")
        elif backend.get("kind") not in ("engine", "openai"):
            yield Diagnostic(path, "loads no adapters: only the engine, and vLLM behind 'kind: openai', do")


def listings_of_no_server(draft: Draft) -> Findings:
    """Backends that are there, and tell which models are adapters of another."""
    backends = mappings_at(draft.content, "backends")
    for name in mapping_at(mapping_at(draft.content, "adapters"), "listed"):
        backend, path = backends.get(name), ("adapters", "listed", name)
        if backend is None:
            yield Diagnostic(path, f"no backend is named '{name}'{suggestion(name, tuple(backends))}")
        elif backend.get("kind") == "openai" and backend.get("telemetry") not in ("vllm", "sglang"):
            yield Diagnostic(
                path,
                f"lists adapters as which server does? Give 'backends.{name}' a 'telemetry' of vllm or sglang",
            )
        elif backend.get("kind") not in ("engine", "openai"):
            yield Diagnostic(
                path, "lists no adapters: only the engine, and vLLM and SGLang behind 'kind: openai', do"
            )
