"""``backends``: where models run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.policy.schema.kv_events import KvEvents
from gateway.policy.schema.replicas import Replicas, WrittenReplicas, first_address
from gateway.policy.schema.values import Count, Duration, Frozen, HttpUrl, Name, Share, Text, Timeout

BACKEND_SECRETS = frozenset({"api_key", "client_secret", "secret_access_key", "session_token"})
"""Keys of a backend, or below it, that a variable may leave unset: the backend is disabled then."""


def _openai_base(url: str) -> str:
    for ending in ("/chat/completions", "/completions", "/embeddings", "/models"):
        if url.endswith(ending):
            raise ValueError(f"should end before '{ending}', such as {url.removesuffix(ending)}")
    return url


def _azure_base(url: str) -> str:
    if "/openai" in (path := urlsplit(url).path):
        raise ValueError(
            f"should end before '{path[path.index('/openai') :]}', as in https://NAME.openai.azure.com"
        )
    return url


def _gemini_base(url: str) -> str:
    for ending in ("/v1beta", "/v1", "/openai", "/models"):
        if url.endswith(ending):
            raise ValueError(f"should end before '{ending}', such as {url.removesuffix(ending)}")
    return url


def _anthropic_base(url: str) -> str:
    for ending in ("/v1/messages", "/messages", "/v1"):
        if url.endswith(ending):
            raise ValueError(f"should end before '{ending}', such as {url.removesuffix(ending)}")
    return url


def _engine_base(url: str) -> str:
    if urlsplit(url).path:
        raise ValueError(
            f"should name host and port only, without a path, such as http://{urlsplit(url).netloc}"
        )
    return url


def _never(continues: bool) -> bool:
    if continues:
        raise ValueError("an embedder gives no answers to go on from; remove the key")
    return continues


class BreakerSettings(Frozen):
    """When requests to a failing model of a backend are suspended, and for how long; then one request is its probe.

    Those of the tenant that it fails; those of all, once it fails several, and would be suspended without any
    one of them.
    """

    failures: Count = 5
    """In ``window``, at least."""
    share: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 0.5
    """Of the requests that ended in ``window``, at least, from its first failure on."""
    window: Timeout = 30.0
    cooldown: Timeout = 10.0


class AnyBackend(Frozen):
    """What every kind of backend has."""

    max_concurrency: Count | None = None
    """Concurrent answers, over all workers of one ``tollgate serve``; further ones queue."""
    max_tokens_in_flight: Count | None = None
    """Prompt and expected output tokens of the requests in flight."""
    region: Name | None = None
    local: bool = False
    """Content that must not leave may go here."""
    continues: bool = False
    """Takes a partial answer as the last message and goes on from there."""
    breaker: BreakerSettings = BreakerSettings()


class Server(AnyBackend):
    """A server that answers over HTTP."""

    streams: bool = True
    """Its streams say all that its whole answers do, so that whole answers may be collected from them."""


class SelfHosted(Server):
    """A server of one's own, of which an autoscaler may leave none."""

    cold_start: Timeout | None = None
    """For which requests wait where nobody listens at ``base_url``, or none of its replicas is there."""


class Replicated(SelfHosted):
    """A server that may be several."""

    replicas: WrittenReplicas | None = None
    """The servers that it is, in place of the one at ``base_url``."""

    @model_validator(mode="before")
    @classmethod
    def _first_address(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (url := first_address(given.get("replicas"))):
            return {"base_url": url, **given}
        return given

    @model_validator(mode="after")
    def _one_place_to_wait_at(self) -> Self:
        if self.cold_start is not None and self.replicas is not None and self.replicas.servers:
            raise ValueError(
                "should have cold_start or replicas that are written down, not both: these stand in for each other, "
                "and none of them goes. With cold_start say how they are found, or name one address in base_url"
            )
        return self


def _addresses(replicas: Replicas | None, check: Callable[[str], str]) -> None:
    """Those that are written down are of ``base_url``'s form. Raises ``ValueError``."""
    for server in replicas.servers if replicas is not None else ():
        try:
            check(server.url)
        except ValueError as error:
            raise ValueError(f"the replica {server.url} {error}") from None


class Golden(Frozen):
    """What an edited engine has to answer before it takes over."""

    set: Text
    """A file of the policy folder, in the form of ``tollgate evaluate``."""
    at_least: Share = 1.0
    """Of its cases."""


class EngineBackend(Replicated):
    """The bundled engine. With ``launch`` the gateway starts it as a child at ``base_url``'s port."""

    kind: Literal["engine"]
    base_url: Annotated[HttpUrl, AfterValidator(_engine_base)] = "http://127.0.0.1:8100"
    launch: bool = False
    model: Text = "demo"
    """What the launched engine serves: ``demo``, a local folder or file, one in a bucket, or a hub id."""
    args: tuple[str, ...] = ()
    """More options for the launched engine's command line, as ``python -m engine serve --help`` lists them."""
    env: tuple[Text, ...] = ()
    """Variables of the gateway's environment, by glob pattern, that the launched engine gets as well."""
    golden: Golden | None = None
    """What a launched engine's successor is asked first."""
    stop_first: Annotated[bool, Field(strict=True)] = False
    """After an edit, end the launched engine before its successor starts, rather than have both for a while."""
    prefill: tuple[Name, ...] = ()
    """Backends whose engines, of ``--role prefill``, compute the prompts of this one, of ``--role decode``."""
    local: bool = True
    continues: bool = True

    @model_validator(mode="after")
    def _replicas_fit(self) -> Self:
        _addresses(self.replicas, _engine_base)
        if self.launch and self.replicas is not None:
            raise ValueError("should have launch or replicas, not both: the gateway starts one engine")
        return self


class Provider(Server):
    """Another's server, which callers share with others: how much it bears is learned from its latency."""

    unsupported_fields: Literal["pass", "refuse"] = "pass"
    """What becomes of parameters that its API is not known to take: pass them on, or leave them out where a request is
    translated; or refuse the request."""


PresetName = Literal["cohere", "deepseek", "groq", "mistral", "openrouter", "together", "xai"]
PRESET_URLS: Mapping[PresetName, str] = {
    "cohere": "https://api.cohere.ai/compatibility/v1",
    "deepseek": "https://api.deepseek.com",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "together": "https://api.together.xyz/v1",
    "xai": "https://api.x.ai/v1",
}


class OpenAIBackend(Provider, Replicated):
    """Any server that speaks OpenAI's API. ``base_url`` ends where ``/chat/completions`` would follow."""

    kind: Literal["openai"]
    preset: PresetName | None = None
    """The provider whose form of that API it is: its address, and what it takes and leaves out."""
    base_url: Annotated[HttpUrl, AfterValidator(_openai_base)]
    """The preset's, where none is named."""
    api_key: SecretStr | None = None
    telemetry: Literal["vllm", "sglang", "tgi"] | None = None
    """The server whose figures are read from ``/metrics``, beside the API."""
    priority: Literal["lower_first", "higher_first"] | None = None
    """In which sense it takes the priority of a caller's tier, as a request's ``priority``."""
    kv_events: KvEvents | None = None
    """Where it publishes what its KV cache holds."""
    inference_pool: Annotated[bool, Field(strict=True)] = False
    """At ``base_url`` is a gateway of Kubernetes before an InferencePool: it is told tier and tenant."""

    @model_validator(mode="before")
    @classmethod
    def _presets_address(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (url := PRESET_URLS.get(given.get("preset"))):  # type: ignore[arg-type]
            return {"base_url": url, **given}
        return given

    @model_validator(mode="after")
    def _replicas_fit(self) -> Self:
        _addresses(self.replicas, _openai_base)
        if self.inference_pool and self.priority is not None:
            raise ValueError(
                "should have inference_pool or priority, not both: the pool's gateway is told the tier, and its "
                "endpoint picker gives the priority"
            )
        return self


class EntraAuth(Frozen):
    """An identity of Microsoft Entra ID: by a secret, by a workload's token, or, without either, the machine's own."""

    tenant_id: Text | None = None
    client_id: Text | None = None
    client_secret: SecretStr | None = None
    token_file: Text | None = None
    """The token of a federated identity; it is read anew each time, as whoever writes it replaces it."""
    authority: HttpUrl = "https://login.microsoftonline.com"
    scope: Text = "https://cognitiveservices.azure.com/.default"

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.client_secret is not None and self.token_file is not None:
            raise ValueError("should have client_secret or token_file, not both")
        if (self.client_secret or self.token_file) and not (self.tenant_id and self.client_id):
            raise ValueError("should name tenant_id and client_id beside a client_secret or a token_file")
        return self


class AzureBackend(Provider):
    """Azure OpenAI. ``base_url`` is the resource's address, and ends where ``/openai`` would follow."""

    kind: Literal["azure"]
    base_url: Annotated[HttpUrl, AfterValidator(_azure_base)]
    api_version: Text | None = None
    """Of the older API, whose paths name deployments; none for the v1 API, which needs none."""
    api_key: SecretStr | None = None
    entra: EntraAuth | None = None
    """Who the gateway is, where no key is used."""

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if self.api_key is not None and self.entra is not None:
            raise ValueError("should have api_key or entra, not both")
        return self


class AnthropicBackend(Provider):
    """Anthropic's Messages API. ``base_url`` ends where ``/v1/messages`` would follow."""

    kind: Literal["anthropic"]
    base_url: Annotated[HttpUrl, AfterValidator(_anthropic_base)] = "https://api.anthropic.com"
    api_key: SecretStr | None = None
    max_tokens: Count = 4096
    """Sent when the caller sets no cap: this API demands one."""


class Vertex(Frozen):
    """A project of Google Cloud whose Vertex AI is asked."""

    project: Text
    location: Name = "global"
    credentials: Text | None = None
    """A key file; without one that of GOOGLE_APPLICATION_CREDENTIALS, or the machine's own service account."""


class GeminiBackend(Provider):
    """Google's Gemini API, or Vertex AI's. ``base_url`` ends where ``/v1beta`` or ``/v1`` would follow."""

    kind: Literal["gemini"]
    base_url: Annotated[HttpUrl, AfterValidator(_gemini_base)] | None = None
    """Google's own, by ``vertex`` and its location, where none is named."""
    api_key: SecretStr | None = None
    vertex: Vertex | None = None

    @property
    def url(self) -> str:
        if self.base_url is not None or self.vertex is None:
            return self.base_url or "https://generativelanguage.googleapis.com"
        location = self.vertex.location
        return f"https://{'' if location == 'global' else location + '-'}aiplatform.googleapis.com"

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if self.api_key is not None and self.vertex is not None:
            raise ValueError("should have api_key or vertex, not both")
        return self


class AwsAuth(Frozen):
    """An identity of Amazon's: the keys written here, or what botocore finds (variables, files, roles of machines)."""

    region: Name
    access_key_id: Text | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    profile: Text | None = None
    """Of the shared configuration files."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.access_key_id is not None and self.profile is not None:
            raise ValueError("should have access_key_id or profile, not both")
        if self.secret_access_key is not None and self.access_key_id is None:
            raise ValueError("should name access_key_id beside secret_access_key")
        return self


class BedrockBackend(Provider):
    """Amazon Bedrock's Converse API. ``base_url`` ends where ``/model`` would follow."""

    kind: Literal["bedrock"]
    base_url: HttpUrl | None = None
    """Amazon's own, of ``aws.region``, where none is named."""
    aws: AwsAuth
    api_key: SecretStr | None = None
    """One of Bedrock's, in place of a signature."""

    @property
    def url(self) -> str:
        end = ".cn" if self.aws.region.startswith("cn-") else ""
        return self.base_url or f"https://bedrock-runtime.{self.aws.region}.amazonaws.com{end}"


class FakeReply(Frozen):
    """One scripted answer; the first whose ``match`` occurs in the last user message is given."""

    match: str = ""
    reply: str = ""
    status: Annotated[int, Field(strict=True, ge=200, le=599)] = 200
    """400 and up: answer with this HTTP error instead of ``reply``."""
    cut_after: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Break off, as a dropped connection would, after this many chunks."""


class FakeBackend(AnyBackend):
    """A scripted backend in the gateway's own process, for tests and demos."""

    kind: Literal["fake"]
    script: Annotated[tuple[FakeReply, ...], Field(min_length=1)]
    first_token_delay: Duration = 0.0
    token_delay: Duration = 0.0
    local: bool = True


class SidecarBackend(AnyBackend):
    """The sidecar's own embedder, for ``/v1/embeddings``."""

    kind: Literal["sidecar"]
    local: bool = True
    continues: Annotated[bool, AfterValidator(_never)] = False
    matryoshka: bool = Field(default=False, strict=True)
    """Whether the embedder was trained so that a vector's beginning is a good vector: ``dimensions`` then cuts it."""


Backend = Annotated[
    EngineBackend
    | OpenAIBackend
    | AnthropicBackend
    | AzureBackend
    | GeminiBackend
    | BedrockBackend
    | FakeBackend
    | SidecarBackend,
    Field(discriminator="kind"),
]
