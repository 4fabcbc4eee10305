"""A provider of agentgateway's with its address and key, as parameters of a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.lab.migration.draft import PolicyDraft
from gateway.lab.migration.providers import PROVIDERS
from gateway.lab.migration.source import Source

_PROVIDERS = {
    "vertex": "vertex_ai",
    "azureopenai": "azure",
    "togetherai": "together_ai",
    "fireworks": "fireworks_ai",
    "custom": "openai_like",
    "openaicompatible": "openai_like",
}
"""Its names where LiteLLM has another; all are compared in small letters."""
_NAMED = (
    *(
        ("awsRegion", "aws_region_name"),
        ("vertexProject", "vertex_project"),
        ("vertexRegion", "vertex_location"),
    ),
    *(("azureApiVersion", "api_version"), ("apiKey", "api_key"), ("region", "aws_region_name")),
    *(("projectId", "vertex_project"), ("apiVersion", "api_version"), ("azureHost", "api_base")),
)
_ENDING = "/chat/completions"


def parameters(model: Source, shared: Mapping[str, Source], draft: PolicyDraft) -> dict[str, Any] | None:
    """Of an entry of ``llm.models``; None where nobody serves it."""
    named = model.get("provider")
    reference = named.get("reference") if isinstance(named, dict) else None
    base = shared.get(str(reference)) if reference is not None else None
    if reference is not None and base is None:
        draft.report.dropped(model.at("provider"), f"no provider '{reference}' is written", "add a backend")
        return None
    places = [place for place in (base, model) if place is not None]
    own = base.get("provider") if base is not None else named
    found: dict[str, Any] = {}
    for place in places:
        params = place.part("params")
        found |= _settings(params)
        found |= key_of(place.part("auth"))
        params.finish()
    model.skip("name", "provider", "visibility")
    if base is not None:
        base.skip("name", "provider")
    return completed(str(own), found.pop("model", None) or str(model.get("name")), found, model.where, draft)


def completed(
    provider: str, model: str, params: Mapping[str, Any], where: str, draft: PolicyDraft
) -> dict[str, Any] | None:
    """``params`` with LiteLLM's name of the provider before the model's."""
    small = provider.lower()
    prefix = _PROVIDERS.get(small, small)
    if prefix not in PROVIDERS:
        draft.report.dropped(
            where, f"nobody here knows the provider '{provider}'", "add a backend with its base_url"
        )
        return None
    if prefix == "openai" and "api_base" in params and "api_key" not in params:
        prefix = "openai_like"  # a server of one's own, which is not shown OpenAI's key
    return {**params, "model": f"{prefix}/{model}"}


def _settings(params: Source) -> dict[str, Any]:
    found: dict[str, Any] = {
        theirs: value for ours, theirs in _NAMED if (value := params.get(ours)) is not None
    }
    if model := params.get("model"):
        found["model"] = str(model)
    if base := params.get("baseUrl"):
        found["api_base"] = _with_path(str(base))
    elif address := host_address(params, str(params.get("pathOverride") or ""), tls=False):
        found["api_base"] = address
    params.skip("pathOverride")
    if resource := params.get("azureResourceName") or params.get("resourceName"):
        kind = str(params.get("azureResourceType") or params.get("resourceType") or "openAI")
        found["api_base"] = f"https://{resource}.openai.azure.com"
        if kind.lower() == "foundry":
            found["api_base"] = f"https://{resource}-resource.services.ai.azure.com"
        params.skip("azureProjectName", "projectName", "azureResourceType", "resourceType")
    return found


def provider_settings(provider: Source) -> dict[str, Any]:
    """Of the mapping behind a provider's name in a route's backend."""
    found = _settings(provider)
    provider.finish()
    return found


def _with_path(url: str) -> str:
    """OpenAI's API is at ``/v1`` where the address names no path."""
    if "://" not in url:
        return url
    return url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/v1"


def host_address(place: Source, path: str, *, tls: bool) -> str | None:
    """``hostOverride`` with the path of a rewritten URL."""
    host = place.get("hostOverride")
    if isinstance(host, dict):
        host = host.get("host")
    if not host:
        return None
    name, _, port = str(host).rpartition(":")
    if not name:
        name, port = str(host), "443"
    secure = tls or port == "443"
    shown = name if port == ("443" if secure else "80") else f"{name}:{port}"
    path = path.partition("?")[0].removesuffix(_ENDING) or "/v1"
    return f"http{'s' if secure else ''}://{shown}{path}"


def key_of(auth: Source) -> dict[str, Any]:
    """What ``auth`` or ``backendAuth`` gives: a key, or a client's secret of Entra ID."""
    found = auth.get("key")
    value = found.get("value") if isinstance(found, dict) else found
    azure = auth.part("azure").part("explicitConfig").part("clientSecret")
    secret = {
        name: one
        for name in ("tenant_id", "client_id", "client_secret")
        if (one := azure.get(name) or azure.get(_camel(name))) is not None
    }
    return ({"api_key": value} if isinstance(value, str) else {}) | secret


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
