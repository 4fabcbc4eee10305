"""Whose API it is by LiteLLM's prefixes (``openrouter/``), and the backend that asks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from gateway.lab.migration.draft import PolicyDraft
from gateway.lab.migration.source import Source, is_variable
from gateway.policy.schema.backends import PRESET_URLS, PresetName
from gateway.policy.schema.values import http_url

Kind = Literal["openai", "azure", "anthropic", "gemini", "bedrock"]


@dataclass(frozen=True, slots=True)
class Provider:
    kind: Kind
    key: str = ""
    """The variable that LiteLLM reads where the configuration names no key."""
    url: str = ""
    base: str = ""
    """The variable that it reads where the configuration names no address."""
    preset: PresetName | None = None
    keyless: bool = False
    """A server of one's own, which may want no key."""


def _openai(url: str, key: str) -> Provider:
    return Provider("openai", key, url)


_OPENAI = Provider("openai", "OPENAI_API_KEY", "https://api.openai.com/v1")
PROVIDERS: Mapping[str, Provider] = {
    "openai": _OPENAI,
    "text-completion-openai": _OPENAI,
    "azure": Provider("azure", "AZURE_API_KEY", base="AZURE_API_BASE"),
    "azure_text": Provider("azure", "AZURE_API_KEY", base="AZURE_API_BASE"),
    "azure_ai": Provider("openai", "AZURE_AI_API_KEY", base="AZURE_AI_API_BASE"),
    "anthropic": Provider("anthropic", "ANTHROPIC_API_KEY"),
    "gemini": Provider("gemini", "GEMINI_API_KEY"),
    "vertex_ai": Provider("gemini"),
    "vertex_ai_beta": Provider("gemini"),
    "bedrock": Provider("bedrock"),
    "bedrock_converse": Provider("bedrock"),
    "cohere": Provider("openai", "COHERE_API_KEY", preset="cohere"),
    "cohere_chat": Provider("openai", "COHERE_API_KEY", preset="cohere"),
    "deepseek": Provider("openai", "DEEPSEEK_API_KEY", preset="deepseek"),
    "groq": Provider("openai", "GROQ_API_KEY", preset="groq"),
    "mistral": Provider("openai", "MISTRAL_API_KEY", preset="mistral"),
    "openrouter": Provider("openai", "OPENROUTER_API_KEY", preset="openrouter"),
    "together_ai": Provider("openai", "TOGETHERAI_API_KEY", preset="together"),
    "xai": Provider("openai", "XAI_API_KEY", preset="xai"),
    "ollama": Provider(
        "openai", "OLLAMA_API_KEY", "http://localhost:11434/v1", "OLLAMA_API_BASE", keyless=True
    ),
    "ollama_chat": Provider(
        "openai", "OLLAMA_API_KEY", "http://localhost:11434/v1", "OLLAMA_API_BASE", keyless=True
    ),
    "hosted_vllm": Provider("openai", "HOSTED_VLLM_API_KEY", base="HOSTED_VLLM_API_BASE", keyless=True),
    "vllm": Provider("openai", "HOSTED_VLLM_API_KEY", base="HOSTED_VLLM_API_BASE", keyless=True),
    "huggingface": Provider("openai", "HUGGINGFACE_API_KEY", keyless=True),
    "lm_studio": Provider("openai", "LM_STUDIO_API_KEY", base="LM_STUDIO_API_BASE", keyless=True),
    "llamafile": Provider("openai", "LLAMAFILE_API_KEY", "http://127.0.0.1:8080/v1", keyless=True),
    "xinference": Provider("openai", "XINFERENCE_API_KEY", "http://127.0.0.1:9997/v1", keyless=True),
    "openai_like": Provider("openai", "OPENAI_LIKE_API_KEY", base="OPENAI_LIKE_API_BASE", keyless=True),
    "custom_openai": Provider("openai", "OPENAI_LIKE_API_KEY", base="OPENAI_LIKE_API_BASE", keyless=True),
    "litellm_proxy": Provider("openai", "LITELLM_PROXY_API_KEY", base="LITELLM_PROXY_API_BASE", keyless=True),
    "databricks": Provider("openai", "DATABRICKS_API_KEY", base="DATABRICKS_API_BASE"),
    "anyscale": _openai("https://api.endpoints.anyscale.com/v1", "ANYSCALE_API_KEY"),
    "baseten": _openai("https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "cerebras": _openai("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "dashscope": _openai("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "deepinfra": _openai("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "fireworks_ai": _openai("https://api.fireworks.ai/inference/v1", "FIREWORKS_AI_API_KEY"),
    "friendliai": _openai("https://api.friendli.ai/serverless/v1", "FRIENDLI_TOKEN"),
    "github": _openai("https://models.inference.ai.azure.com", "GITHUB_API_KEY"),
    "hyperbolic": _openai("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "meta_llama": _openai("https://api.llama.com/compat/v1", "LLAMA_API_KEY"),
    "moonshot": _openai("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "nebius": _openai("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "novita": _openai("https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "nvidia_nim": _openai("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "perplexity": _openai("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    "sambanova": _openai("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "volcengine": _openai("https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY"),
    "voyage": _openai("https://api.voyageai.com/v1", "VOYAGE_API_KEY"),
    "wandb": _openai("https://api.inference.wandb.ai/v1", "WANDB_API_KEY"),
}
PRESET_HOSTS: Mapping[str, str] = {
    **{
        name: urlsplit(PRESET_URLS[provider.preset]).hostname or ""
        for name, provider in PROVIDERS.items()
        if provider.preset
    },
    "anthropic": "api.anthropic.com",
    "gemini": "generativelanguage.googleapis.com",
}
"""Where the addresses are not in the table above."""
_BY_BEGINNING = (
    (
        "openai",
        (
            "gpt-",
            "chatgpt-",
            "o1",
            "o3",
            "o4",
            "text-embedding-",
            "text-davinci-",
            "dall-e-",
            "whisper-",
            "tts-",
        ),
    ),
    ("anthropic", ("claude-",)),
    ("vertex_ai", ("gemini-",)),
    ("cohere", ("command-",)),
)
"""Of models without a prefix."""
_BELOW_V1 = ("ollama", "ollama_chat", "huggingface")
"""Servers whose OpenAI API is at ``/v1``, where LiteLLM asks for their own."""
_UNKNOWN = "UPSTREAM_BASE_URL"
"""Where an address was a placeholder."""
_KEY_ELSEWHERE = "UPSTREAM_API_KEY"
_ENDINGS = re.compile(r"/(chat/completions|completions|embeddings|models)$")
_REGION = re.compile(r"(?:us|eu|ap|ca|sa|me|af|il)(?:-gov)?-[a-z]+-\d")


def provider_of(model: str, custom: str | None, has_address: bool) -> tuple[str, str] | None:
    """The prefix and the name behind it; None for what nobody knows."""
    prefix, slash, rest = model.partition("/")
    if custom and custom in PROVIDERS:
        return custom, rest if prefix == custom else model
    if slash and prefix in PROVIDERS:
        return prefix, rest
    for name, beginnings in _BY_BEGINNING:
        if model.startswith(beginnings):
            return name, model
    return ("openai", model) if has_address else None


def backend_of(
    name: str, model: str, params: Source, draft: PolicyDraft
) -> tuple[dict[str, Any], str] | None:
    """Settings of the backend that a deployment needs, and the model's name there. None where there is none: the report
    says why."""
    provider = PROVIDERS[name]
    if provider.kind == "azure":
        return _azure(provider, params, draft), model
    if provider.kind == "anthropic":
        base = _address(params, draft)
        settings: dict[str, Any] = {"kind": "anthropic"}
        if base:
            settings["base_url"] = re.sub(r"/v1(/messages)?$", "", base)
        return settings | {"api_key": _key(provider, params, draft)}, model
    if provider.kind == "gemini":
        return _gemini(name, provider, model, params, draft)
    if provider.kind == "bedrock":
        return _bedrock(model, params, draft)
    if not (
        provider.url or provider.base or provider.preset or params.has("api_base") or params.has("base_url")
    ):
        draft.report.dropped(
            params.at("model"), f"no address of '{name}' is written", "add a backend with its base_url"
        )
        return None
    return _openai_like(name, provider, params, draft), model


def _address(params: Source, draft: PolicyDraft) -> str | None:
    for key in ("api_base", "base_url"):
        if url := params.text(key):
            if is_variable(url):
                return url
            try:
                return _ENDINGS.sub("", http_url(url).rstrip("/"))
            except ValueError:
                draft.report.dropped(
                    params.at(key),
                    f"'{url}' is no URL, so that a variable stands in its place",
                    f"set {_UNKNOWN}",
                )
                return f"${{{_UNKNOWN}}}"
    return None


def _key(provider: Provider, params: Source, draft: PolicyDraft) -> str:
    given = params.text("api_key")
    if given is None:
        return f"${{{provider.key}{':-' if provider.keyless else ''}}}"
    if is_variable(given):
        return given
    name = _KEY_ELSEWHERE if _is_elsewhere(provider, params) else provider.key or "API_KEY"
    return draft.secret(given.replace("$${", "${"), name)


def _is_elsewhere(provider: Provider, params: Source) -> bool:
    """Whether a provider's API is asked of another's server: where the variable of its key is not set for this one, the
    provider's own key must not go there."""
    address = params.text("api_base") or params.text("base_url")
    if address is None or provider.keyless or provider.base:
        return False
    own = {urlsplit(provider.url).hostname, *PRESET_HOSTS.values()}
    return not is_variable(address) and urlsplit(address).hostname not in own


def _openai_like(name: str, provider: Provider, params: Source, draft: PolicyDraft) -> dict[str, Any]:
    settings: dict[str, Any] = {"kind": "openai"}
    base = _address(params, draft)
    if provider.preset:
        settings["preset"] = provider.preset
    elif base is None:
        base = provider.url or f"${{{provider.base}}}"
    if base and name in _BELOW_V1 and not base.endswith("/v1"):
        base += "/v1"
    if base:
        settings["base_url"] = base
    if provider is _OPENAI and base != provider.url and not params.has("api_key"):
        provider = Provider("openai", provider.key, keyless=True)
    if name == "azure_ai":
        draft.report.changed(
            params.at("model"),
            "models of Azure AI Foundry are asked by OpenAI's API",
            "let base_url be the address of that API: https://NAME.services.ai.azure.com/openai/v1",
        )
    return settings | {"api_key": _key(provider, params, draft)}


def _azure(provider: Provider, params: Source, draft: PolicyDraft) -> dict[str, Any]:
    base = _address(params, draft) or f"${{{provider.base}}}"
    settings: dict[str, Any] = {"kind": "azure", "base_url": re.sub(r"/openai(/.*)?$", "", base)}
    if version := params.text("api_version"):
        settings["api_version"] = version
    entra: dict[str, Any] = {}
    for key in ("tenant_id", "client_id", "client_secret"):
        if value := params.text(key):
            entra[key] = (
                draft.secret(value, "AZURE_CLIENT_SECRET")
                if key == "client_secret" and not is_variable(value)
                else value
            )
    if "client_secret" in entra and len(entra) < 3:
        draft.report.dropped(
            params.at("client_secret"),
            "Entra signs in with tenant, client and secret together",
            "write `entra` for the backend: docs/providers.md",
        )
        entra = {}
    if entra:
        return settings | {"entra": entra}
    return settings | {"api_key": _key(provider, params, draft)}


def _gemini(
    name: str, provider: Provider, model: str, params: Source, draft: PolicyDraft
) -> tuple[dict[str, Any], str] | None:
    base = _address(params, draft)
    settings: dict[str, Any] = {"kind": "gemini"} | ({"base_url": base} if base else {})
    if name == "gemini":
        return settings | {"api_key": _key(provider, params, draft)}, model
    if not model.startswith(("gemini", "text-embedding", "*")):
        draft.report.dropped(
            params.at("model"),
            f"'{model}' at Vertex AI is not served by its Gemini API, which is what Tollgate asks there",
            "ask that model's own provider, or an OpenAI-compatible endpoint of it",
        )
        return None
    vertex = {
        "project": params.text("vertex_project") or "${VERTEXAI_PROJECT}",
        "location": params.text("vertex_location") or "${VERTEXAI_LOCATION:-us-central1}",
    }
    if credentials := params.text("vertex_credentials"):
        if credentials.lstrip().startswith("{"):
            draft.report.dropped(
                params.at("vertex_credentials"),
                "a key's JSON in the configuration itself is not read",
                "save it in a file and name that in `vertex.credentials`",
            )
        else:
            vertex["credentials"] = credentials
    return settings | {"vertex": vertex}, model


def _bedrock(model: str, params: Source, draft: PolicyDraft) -> tuple[dict[str, Any], str]:
    region = params.text("aws_region_name")
    for part in ("converse/", "converse_like/", "invoke/"):
        model = model.removeprefix(part)
    first, _, rest = model.partition("/")
    if rest and _REGION.fullmatch(first):
        region, model = region or first, rest
    aws: dict[str, Any] = {"region": region or "${AWS_REGION_NAME:-us-west-2}"}
    for key, name in (
        ("aws_access_key_id", "access_key_id"),
        ("aws_secret_access_key", "secret_access_key"),
        ("aws_session_token", "session_token"),
        ("aws_profile_name", "profile"),
    ):
        if value := params.text(key):
            aws[name] = value if is_variable(value) or name == "profile" else draft.secret(value, key.upper())
    if ("access_key_id" in aws) != ("secret_access_key" in aws):
        draft.report.dropped(
            params.at("aws_access_key_id"),
            "a key of AWS's is its id and its secret together",
            "write both in `aws`, or neither for the machine's own role",
        )
        aws = {name: value for name, value in aws.items() if name in ("region", "profile")}
    settings: dict[str, Any] = {"kind": "bedrock", "aws": aws}
    if endpoint := params.text("aws_bedrock_runtime_endpoint"):
        settings["base_url"] = endpoint
    if given := params.text("api_key"):
        settings["api_key"] = given if is_variable(given) else draft.secret(given, "AWS_BEARER_TOKEN_BEDROCK")
    return settings, model


def short_name(name: str, settings: Mapping[str, Any]) -> str:
    """What to call a backend: its provider, or the host of a server of one's own."""
    plain = {"text-completion-openai": "openai", "vertex_ai_beta": "vertex_ai", "bedrock_converse": "bedrock"}
    name = plain.get(name, name).removesuffix("_chat")
    url = str(settings.get("base_url", ""))
    known = {provider.url for provider in PROVIDERS.values()}
    if (
        name in ("openai", "custom_openai", "openai_like")
        and url
        and url not in known
        and not is_variable(url)
    ):
        return urlsplit(url).hostname or name
    return name.replace("_", "-")
