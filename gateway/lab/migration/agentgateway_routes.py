"""agentgateway's routes: a backend of kind ``ai`` is a model, called as its provider's model or its own name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.lab.migration.agentgateway_provider import completed, host_address, key_of, provider_settings
from gateway.lab.migration.draft import PolicyDraft
from gateway.lab.migration.entries import deployment
from gateway.lab.migration.source import Source, mapping


def routes(
    top: Source, draft: PolicyDraft, advice: Mapping[str, tuple[str, str]]
) -> tuple[list[Source], list[Source]]:
    """Deployments of ``binds``, ``gateways`` and ``routes``, and the ``apiKey`` sections there."""
    found, places = [*top.parts("routes")], []
    gateways = top.part("gateways")
    listeners = [gateways.part(name) for name, _ in list(gateways.left())]
    for gateway in list(listeners):
        listeners += gateway.parts("listeners")
    for bind in top.parts("binds"):
        listeners += bind.parts("listeners")
        bind.skip("port")
        bind.finish(advice)
    for listener in listeners:
        found += listener.parts("routes")
        places.append(listener)
        listener.skip("name", "port", "protocol", "hostname", "namespace")
    deployments: list[Source] = []
    for route in found:
        policies = route.part("policies")
        shared = key_of(policies.part("backendAuth"))
        path = str(mapping(mapping(policies.get("urlRewrite")).get("path")).get("full") or "")
        tls = policies.get("backendTLS") is not None
        for backend in route.parts("backends"):
            if backend.has("ai"):
                deployments += _backend(backend.part("ai"), backend, shared, path, tls, draft)
            else:
                draft.report.dropped(backend.where, "only models are served, by backends of kind `ai`")
        places.append(route)
        route.skip("name", "ruleName", "ruleNamespace", "hostnames")
        if len(found) == 1:
            route.skip("matches")
    keys = []
    for place in places:
        policies = place.part("policies")
        keys.append(policies.part("apiKey"))
        policies.skip("backendAuth", "backendTLS", "urlRewrite")
        policies.finish(advice)
        place.finish(advice)
    return deployments, keys


def _backend(
    ai: Source,
    backend: Source,
    shared: Mapping[str, Any],
    path: str,
    tls: bool,
    draft: PolicyDraft,
) -> Iterator[Source]:
    """Groups are asked one after the other; providers of a group share the load."""
    groups = ai.parts("groups")
    weight = backend.get("weight")
    plain = [(1, ai)] if not groups else []
    providers = plain + [
        (order, one) for order, group in enumerate(groups, 1) for one in group.parts("providers")
    ]
    public: str | None = None
    for order, one in providers:
        section = one.part("provider")
        kinds = [name for name, _ in section.left()] or (
            [str(one.get("provider"))] if one.has("provider") else []
        )
        for kind in kinds:
            params = {**shared, **provider_settings(section.part(kind))}
            own = one.part("policies").part("backendAuth") if one is not ai else ai.part("backendAuth")
            params |= key_of(one.part("backendAuth")) | key_of(own)
            if address := host_address(one, str(one.get("pathOverride") or path), tls=tls):
                params["api_base"] = address
            model = params.pop("model", None)
            # a route without a model takes whatever is asked
            public = public or (str(model) if model else f"{ai.get('name') or kind}/*")
            ready = completed(kind, str(model or "*"), params, one.where, draft)
            if ready is None:
                continue
            if len(groups) > 1:
                ready["order"] = order
            if isinstance(weight, int | float):
                ready["weight"] = weight
            yield deployment(public, ready, one.where, draft)
        one.skip("name", "pathOverride", "hostOverride")
        one.finish()
    ai.skip("name")
    ai.finish()
    backend.finish()
