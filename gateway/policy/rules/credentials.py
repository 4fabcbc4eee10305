"""Credentials of backends of which a part is missing: their provider would refuse each request."""

from __future__ import annotations

from gateway.policy.problems import Diagnostic, KeyPath
from gateway.policy.rules.subject import Findings, Valid
from gateway.policy.schema import (
    AnthropicBackend,
    AwsAuth,
    AzureBackend,
    BedrockBackend,
    EntraAuth,
    GeminiBackend,
    OpenAIBackend,
)
from gateway.policy.schema.backends import AnyBackend

_OF_OPENAI = "https://api.openai.com"


def half_credentials(valid: Valid) -> Findings:
    """Of backends that are used: one whose variable is unset is disabled, and said to be."""
    for name, backend in valid.policy.backends.items():
        if name in valid.disabled:
            continue
        for path, message in _missing(backend):
            yield Diagnostic(("backends", name, *path), message)
    if valid.policy.files.bucket is not None:
        for path, message in _of_aws(valid.policy.files.s3):
            yield Diagnostic(("files", "s3", *path), message)


_Found = list[tuple[KeyPath, str]]


def _missing(backend: AnyBackend) -> _Found:
    match backend:
        case BedrockBackend(api_key=None):
            return [(("aws", *path), message) for path, message in _of_aws(backend.aws)]
        case AzureBackend(api_key=None, entra=None):
            return [((), "has no credentials; write api_key, or 'entra: {}' for the machine's own identity")]
        case AzureBackend(entra=EntraAuth() as entra):
            return _of_entra(entra)
        case GeminiBackend(api_key=None, vertex=None, base_url=None):
            return [((), "has no credentials for Google's own API; write api_key, or vertex: {project: …}")]
        case AnthropicBackend(api_key=None) if "base_url" not in backend.model_fields_set:
            return [((), "has no credentials for Anthropic's own API; write api_key")]
        case OpenAIBackend(api_key=None) if backend.preset or backend.base_url.startswith(_OF_OPENAI):
            return [((), "has no credentials for the provider's own API; write api_key")]
    return []


def _of_aws(auth: AwsAuth) -> _Found:
    if auth.access_key_id is not None and auth.secret_access_key is None:
        return [(("access_key_id",), "has no effect without secret_access_key beside it; write that, too")]
    if auth.session_token is not None and auth.access_key_id is None:
        message = "has no effect without access_key_id and secret_access_key; write them, too"
        return [(("session_token",), message)]
    return []


def _of_entra(auth: EntraAuth) -> _Found:
    if auth.client_secret is None and auth.token_file is None and auth.tenant_id is not None:
        message = "has no effect without client_secret or token_file: the machine's own identity is used"
        return [(("entra", "tenant_id"), message)]
    return []
