"""What an operator may write in a policy folder, as frozen types. ``policies/README.md`` is its reference.

Unknown keys are errors everywhere. A key is added here together with the code that gives it effect, never before, and
with the experiment that shows it (``tests/e2e/keys``).
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from gateway.policy.schema.access import (
    DEFAULT_TIER,
    HOUSE,
    Algorithm,
    Budget,
    Jwt,
    Key,
    OnSaturation,
    PreviousHash,
    QuotaSettings,
    Scope,
    Tenant,
    Tier,
)
from gateway.policy.schema.adapters import AdapterListing, AdapterServer, AdapterSettings
from gateway.policy.schema.admin import Admin, Oidc
from gateway.policy.schema.any_guard import AnyGuard, Classifier
from gateway.policy.schema.backends import (
    BACKEND_SECRETS,
    AnthropicBackend,
    AnyBackend,
    AwsAuth,
    AzureBackend,
    Backend,
    BedrockBackend,
    BreakerSettings,
    EngineBackend,
    EntraAuth,
    FakeBackend,
    FakeReply,
    GeminiBackend,
    Golden,
    OpenAIBackend,
    Provider,
    Replicated,
    SelfHosted,
    SidecarBackend,
    Vertex,
)
from gateway.policy.schema.callbacks import Callback
from gateway.policy.schema.cors import Cors
from gateway.policy.schema.evaluation import Evaluation
from gateway.policy.schema.experiments import Experiment, ExperimentArm, Metric, PromptPlace, Where
from gateway.policy.schema.guards import (
    Guard,
    Guards,
    InjectionGuard,
    LengthGuard,
    PiiGuard,
    ReviewSettings,
    SecretsGuard,
    SidecarSettings,
    TopicsGuard,
    ToxicityGuard,
)
from gateway.policy.schema.kv_events import KvEvents
from gateway.policy.schema.limits import RequestLimits
from gateway.policy.schema.models import (
    Complexity,
    Escalate,
    Model,
    Price,
    Retry,
    Rollout,
    RolloutGuard,
    Select,
    Shadow,
    Sharing,
    SplitBy,
    Step,
    Target,
    Timeouts,
    When,
)
from gateway.policy.schema.replicas import InferencePool, KubernetesService, Outliers, Replicas, ReplicaServer
from gateway.policy.schema.storage import (
    BatchSettings,
    CacheSettings,
    CacheStore,
    DriftSettings,
    ExactCache,
    FileSettings,
    LedgerSettings,
    RecordSettings,
    ResponseSettings,
    S3Settings,
    SemanticCache,
    Store,
)
from gateway.policy.schema.telemetry import MetricsSettings, Telemetry
from gateway.policy.schema.values import Frozen, Name, Network, Sha256, Text, parse_duration
from gateway.policy.schema.webhook_guard import WebhookGuard

__all__ = [
    "BACKEND_SECRETS",
    "DEFAULT_TIER",
    "HOUSE",
    "AdapterListing",
    "AdapterServer",
    "AdapterSettings",
    "Admin",
    "Algorithm",
    "AnthropicBackend",
    "AnyBackend",
    "AnyGuard",
    "AwsAuth",
    "AzureBackend",
    "Backend",
    "BatchSettings",
    "BedrockBackend",
    "Billing",
    "BreakerSettings",
    "Budget",
    "CacheSettings",
    "Callback",
    "Classifier",
    "Complexity",
    "Cors",
    "DriftSettings",
    "EngineBackend",
    "EntraAuth",
    "Escalate",
    "Evaluation",
    "ExactCache",
    "Experiment",
    "ExperimentArm",
    "FakeBackend",
    "FakeReply",
    "FileSettings",
    "GeminiBackend",
    "Golden",
    "Guard",
    "InferencePool",
    "InjectionGuard",
    "Jwt",
    "Key",
    "KubernetesService",
    "KvEvents",
    "LedgerSettings",
    "LengthGuard",
    "Metric",
    "Model",
    "Oidc",
    "OnSaturation",
    "OpenAIBackend",
    "Outliers",
    "PiiGuard",
    "Place",
    "Policy",
    "PreviousHash",
    "Price",
    "PromptPlace",
    "Provider",
    "QuotaSettings",
    "RecordSettings",
    "ReplicaServer",
    "Replicas",
    "Replicated",
    "RequestLimits",
    "ResponseSettings",
    "Retry",
    "ReviewSettings",
    "Rollout",
    "RolloutGuard",
    "S3Settings",
    "Scope",
    "SecretsGuard",
    "Select",
    "SelfHosted",
    "SemanticCache",
    "Shadow",
    "Sharing",
    "SidecarBackend",
    "SidecarSettings",
    "SplitBy",
    "Step",
    "Target",
    "Telemetry",
    "Tenant",
    "Tier",
    "Timeouts",
    "TopicsGuard",
    "ToxicityGuard",
    "Vertex",
    "WebhookGuard",
    "When",
    "Where",
    "parse_duration",
]


Place = Literal["store", "cache_store", "ledger", "files", "telemetry"]
"""What keeps or gets contents on other machines, where the policy says so."""


class Billing(Frozen):
    """Who pays for what is sent to models on account of a request and is no part of its answer."""

    shadow: Literal["house", "tenant"] = "house"
    judge: Literal["house", "tenant"] = "house"


class Policy(Frozen):
    """A whole policy folder, parsed."""

    version: Literal[1]
    backends: Annotated[dict[Name, Backend], Field(min_length=1)]
    models: Annotated[dict[Name, Model], Field(min_length=1)]
    keys: tuple[Key, ...] = ()
    revoked_keys: tuple[Sha256, ...] = ()
    """Hashes of keys that are refused wherever else they stand."""
    jwt: tuple[Jwt, ...] = ()
    admin: Admin = Admin()
    drained: tuple[Name, ...] = ()
    """Backends that get no more requests; those in flight end as ever. A name of no backend means nothing."""
    residency: tuple[Name, ...] = ()
    """Regions in which everybody's content stays; empty: anywhere."""
    regions: dict[Place, Name] = Field(default={})
    """In which region a server is that is named under these keys."""
    cache_epochs: dict[Name, Annotated[int, Field(strict=True, ge=0, le=2**53)]] = Field(default={})
    """By tenant. What was cached under another number is not found."""
    tenants: dict[Name, Tenant] = Field(default={})
    tiers: dict[Name, Tier] = Field(default={})
    prices: dict[Text, Price] = Field(default={})
    """By a target's model name, by ``backend/model`` where backends differ, or by ``backend/*``."""
    default_price: Price | None = None
    """For targets of a provider's that neither ``prices`` nor the catalogue knows."""
    on_unpriced: Literal["refuse", "free"] = "refuse"
    """What becomes of a request under a budget that may reach a target without a price."""
    extras: tuple[Text, ...] = ()
    """What requests under a budget may ask of a provider beside what the price table counts, by the names of fields and
    of kinds of tools."""
    trusted_proxies: tuple[Network, ...] = ()
    """Whose ``X-Forwarded-For`` is believed."""
    cors: Cors = Cors()
    """Which web pages may call the gateway from a browser."""
    guards: Guards = Field(default={})
    review: ReviewSettings = ReviewSettings()
    """Of what guards that only flag have found."""
    prompts: dict[Name, Text] = Field(default={})
    """System prompts that arms of experiments use; a file ``NAME.prompt.md`` of the folder is one as well."""
    experiments: dict[Name, Experiment] = Field(default={})
    """What is compared, each on requests that are in none of those before it."""
    caches: CacheSettings = CacheSettings()
    responses: ResponseSettings = ResponseSettings()
    """What ``/v1/responses`` keeps."""
    files: FileSettings = FileSettings()
    """What ``/v1/files`` keeps."""
    adapters: AdapterSettings | None = None
    """LoRA adapters: those of tenants, and those that servers list."""
    batches: BatchSettings = BatchSettings()
    """What ``/v1/batches`` takes, and what its lines may use."""
    record: RecordSettings = RecordSettings()
    """Traffic that is kept to be replayed."""
    evaluation: Evaluation | None = None
    """Answers that a judge model scores, on idle capacity."""
    drift: DriftSettings | None = None
    """Whether what models are asked and do changes is looked at."""
    shared_prompts: dict[Name, Text] = Field(default={})
    """System prompts whose beginnings models of ``prefix_sharing: system`` keep for all tenants together."""
    limits: RequestLimits = RequestLimits()
    """How much structure a request may have."""
    sidecar: SidecarSettings = SidecarSettings()
    callbacks: tuple[Callback, ...] = ()
    """Who is told of budgets, breakers, refused policies and blocked contents."""
    telemetry: Telemetry = Telemetry()
    """Where traces and metrics are sent."""
    ledger: LedgerSettings = LedgerSettings()
    metrics: MetricsSettings = MetricsSettings()
    billing: Billing = Billing()
    store: Store = "memory"
    """Where workers and replicas share state: ``memory`` is this process alone."""
    cache_store: CacheStore = "same"
    """Where cached answers and receipts are; ``same`` is where ``store`` says."""
    on_store_failure: Literal["open", "closed", "local"] = "local"
    """Quotas while the store is away: not enforced, everything refused, or enforced by each process alone."""

    @cached_property
    def keys_in_force(self) -> tuple[Key, ...]:
        revoked = frozenset(self.revoked_keys)
        return tuple(_in_force(key, revoked) for key in self.keys if key.sha256 not in revoked)

    @cached_property
    def keys_with_limits(self) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if key.quotas.model_fields_set or key.budget.model_fields_set)

    @cached_property
    def limited_tiers(self) -> frozenset[str]:
        """Those with limits of their own, which all of their tenants share."""
        return frozenset(
            name
            for name, tier in self.tiers.items()
            if tier.quotas.model_fields_set or tier.budget.model_fields_set
        )

    @cached_property
    def tenants_under_limited_tiers(self) -> frozenset[str]:
        """By what their keys say; a token can name any tier."""
        return frozenset(key.tenant for key in self.keys if key.tier in self.limited_tiers)

    @cached_property
    def has_residency(self) -> bool:
        """Whether anybody's content is to stay anywhere."""
        return (
            bool(self.residency)
            or any(owner.residency for owners in (self.tenants, self.models) for owner in owners.values())
            or any(key.residency for key in self.keys)
        )

    @cached_property
    def guards_of_arms(self) -> frozenset[str]:
        """Guards that look after nobody but those whose arm of an experiment names them."""
        arms = (arm for one in self.experiments.values() for arm in one.arms.values())
        return frozenset(name for arm in arms for name in arm.guards)

    @cached_property
    def _names(self) -> dict[str, str]:
        aliases = {alias: name for name, model in self.models.items() for alias in model.aliases}
        return {**aliases, **{name: name for name in self.models}}

    def resolve(self, name: str) -> str | None:
        """The model that ``name`` means, itself or as an alias."""
        return self._names.get(name)

    @property
    def where_caches_are(self) -> str:
        return self.store if self.cache_store == "same" else self.cache_store

    def tier(self, name: str) -> Tier:
        """A tier's settings; one that the policy does not describe has the defaults."""
        return self.tiers.get(name) or _PLAIN_TIER


_PLAIN_TIER = Tier()


def _in_force(key: Key, revoked: frozenset[str]) -> Key:
    """Without its previous hash where that is revoked."""
    if key.previous is None or key.previous.sha256 not in revoked:
        return key
    return key.model_copy(update={"previous": None})
