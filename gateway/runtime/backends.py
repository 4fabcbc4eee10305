"""The backends of a policy, and the pollers of its engines. Those configured as before are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

import httpx
from pydantic import SecretStr

from gateway.adapters.listing import ListingRoom
from gateway.admission.pools import Pools
from gateway.backends import fitting
from gateway.backends.anthropic import AnthropicBackend
from gateway.backends.api_forwarder import OF_ENGINE, OF_OPENAI, located, paths_of
from gateway.backends.azure import KEY_HEADER, AzureEndpoints
from gateway.backends.bedrock import BedrockBackend
from gateway.backends.cold_start import ColdStartBackend, FirstReplica
from gateway.backends.credentials import entra
from gateway.backends.credentials.aws import AwsSignature
from gateway.backends.credentials.bearer_token import BearerToken
from gateway.backends.embedder import EmbedderBackend
from gateway.backends.engine_poller import EnginePoller
from gateway.backends.fake import FakeBackend
from gateway.backends.gemini import GeminiBackend
from gateway.backends.metrics_poller import NAMES, MetricsPoller
from gateway.backends.openai import InferencePoolBackend, OpenAIBackend, PrioritisedBackend
from gateway.backends.transport import OutgoingTransport
from gateway.engine_load import EngineLoad
from gateway.fallback.health import HealthRegistry
from gateway.held_prefixes.held_prefixes import HeldPrefixes, salt_of
from gateway.policy import schema
from gateway.policy.loader import Loaded
from gateway.routing.score import Scores
from gateway.runtime.runtime import Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.types import Backend
from gateway.wire.apis.table import APIS
from gateway.wire.openai.presets.table import PRESETS


def build_backends(
    loaded: Loaded, state: WorkerState, before: Runtime | None, *, replicated: Collection[str] = ()
) -> dict[str, Backend]:
    """Those that are enabled, by name, without those that only their replicas stand for."""
    backends: dict[str, Backend] = {}
    for name, config in loaded.policy.backends.items():
        if name in loaded.disabled or name in replicated:
            continue
        kept = before.backends.get(name) if before and before.policy.backends.get(name) == config else None
        backends[name] = kept or (
            state.stand_in(name) if state.stand_in is not None else build_backend(name, config, state)
        )
        if before is not None and kept is None:
            state.health.credentials_accepted(name)  # its key may have changed
    return backends


def build_backend(name: str, config: schema.Backend, state: WorkerState) -> Backend:
    if (
        isinstance(config, schema.Replicated)
        and config.replicas is not None
        and config.cold_start is not None
    ):
        return ColdStartBackend(FirstReplica(name, state.replica_of), config.cold_start)
    backend = _build(name, config, state)
    if isinstance(config, schema.SelfHosted) and config.cold_start and isinstance(backend, OpenAIBackend):
        return ColdStartBackend(backend, config.cold_start)
    return backend


def _build(name: str, config: schema.Backend, state: WorkerState) -> Backend:
    transport = state.transport() if state.transport is not None else None
    match config:
        case schema.FakeBackend():
            return FakeBackend(name, config)
        case schema.EngineBackend():
            root = config.base_url.rstrip("/")
            return OpenAIBackend(
                name,
                base_url=root + "/v1",
                probe_url=root + "/health",
                transport=transport,
                hints=True,
                streams=config.streams,
                apis=located(root, OF_ENGINE),
            )
        case schema.AzureBackend():
            return _azure(name, config, transport)
        case schema.BedrockBackend():
            return BedrockBackend(
                name,
                base_url=config.url,
                transport=transport,
                api_key=_secret(config.api_key),
                credentials=AwsSignature(name, config.aws) if config.api_key is None else None,
                streams=config.streams,
                strict=config.unsupported_fields == "refuse",
            )
        case schema.GeminiBackend():
            return _gemini(name, config, transport)
        case schema.AnthropicBackend():
            return AnthropicBackend(
                name,
                base_url=config.base_url,
                transport=transport,
                api_key=_secret(config.api_key),
                max_tokens=config.max_tokens,
                streams=config.streams,
                strict=config.unsupported_fields == "refuse",
            )
        case schema.SidecarBackend():
            return EmbedderBackend(name, state.sidecar, matryoshka=config.matryoshka)
        case schema.OpenAIBackend():
            root = config.base_url.rstrip("/")
            kind = _openai_kind(config)
            return kind(
                name,
                base_url=root,
                probe_url=root + "/models",
                transport=transport,
                api_key=_secret(config.api_key),
                preset=PRESETS[config.preset] if config.preset is not None else None,
                continues=config.continues,
                streams=config.streams,
                strict=config.unsupported_fields == "refuse",
                apis=located(root, paths_of(root) if config.preset is None else PRESETS[config.preset].apis),
                salt=salt_of if config.kv_events is not None else None,
            )


def _azure(
    name: str, config: schema.AzureBackend, transport: httpx.AsyncBaseTransport | None
) -> OpenAIBackend:
    endpoints = AzureEndpoints(config.base_url, config.api_version)
    token = entra.token_request(config.entra, os.environ) if config.entra is not None else None
    return OpenAIBackend(
        name,
        base_url=config.base_url,
        probe_url=endpoints.probe_url,
        transport=transport,
        api_key=_secret(config.api_key),
        key_header=KEY_HEADER,
        endpoints=endpoints,
        apis=lambda api, model: endpoints(APIS[api].path, model) if api in OF_OPENAI else None,
        credentials=BearerToken(name, token) if token is not None else None,
        cap=fitting.CAPS[1],
        continues=config.continues,
        streams=config.streams,
        strict=config.unsupported_fields == "refuse",
    )


def _gemini(
    name: str, config: schema.GeminiBackend, transport: httpx.AsyncBaseTransport | None
) -> GeminiBackend:
    if config.vertex is None:
        where = {}
        credentials = None
    else:
        # It signs, with a large library that other providers do without.
        from gateway.backends.credentials import google

        place = f"/v1/projects/{config.vertex.project}/locations/{config.vertex.location}"
        where = {"models": place, "publisher": "publishers/google/models"}
        credentials = BearerToken(name, google.token_request(config.vertex.credentials, os.environ))
    return GeminiBackend(
        name,
        base_url=config.url,
        transport=transport,
        api_key=_secret(config.api_key),
        credentials=credentials,
        streams=config.streams,
        strict=config.unsupported_fields == "refuse",
        **where,
    )


def build_engines(
    policy: schema.Policy, backends: Mapping[str, Backend], state: WorkerState, before: Runtime | None
) -> dict[str, EnginePoller]:
    """A poller for each engine, and each server that tells its load, by the backend's name."""
    engines: dict[str, EnginePoller] = {}
    for name, backend in backends.items():
        config = policy.backends[name]
        if state.stand_in is not None or not is_polled(config):
            continue
        if before is not None and before.backends.get(name) is backend:
            engines[name] = before.engines[name]
        else:
            engines[name] = build_poller(name, config, state)
    for poller in engines.values():
        poller.servers = len(engines)
    return engines


class HeardState(Protocol):
    """Where what servers tell of themselves goes."""

    @property
    def transport(self) -> Callable[[], httpx.AsyncBaseTransport] | None:
        """Makes what replaces the network, for tests."""
        ...

    @property
    def pools(self) -> Pools: ...
    @property
    def health(self) -> HealthRegistry: ...
    @property
    def scores(self) -> Scores: ...
    @property
    def held(self) -> HeldPrefixes | None:
        """None where nobody keeps what they hold."""
        ...

    @property
    def listings(self) -> ListingRoom | None:
        """None where nobody asks for adapters."""
        ...


def is_polled(config: schema.Backend) -> bool:
    if isinstance(config, schema.Replicated) and config.replicas is not None:
        return False  # its replicas are
    return isinstance(config, schema.EngineBackend) or (
        isinstance(config, schema.OpenAIBackend) and config.telemetry is not None
    )


def build_poller(name: str, config: schema.Backend, state: HeardState) -> EnginePoller:
    """One that has begun, of a backend that ``is_polled``."""
    transport = (state.transport or OutgoingTransport)()

    def told(figures: EngineLoad) -> None:
        state.scores.told(name, figures)
        state.pools.update_engine(name, figures)

    if isinstance(config, schema.OpenAIBackend) and config.telemetry is not None:
        names = NAMES[config.telemetry]
        poller = partial(MetricsPoller, config.base_url, transport, told, names=names, interval=1.0)
        if state.listings is not None:
            poller = partial(poller, on_page=partial(state.listings.page, name))
        return poller().start()
    return EnginePoller(
        getattr(config, "base_url", ""),
        transport,
        told,
        on_state=partial(state.held.digests.told, name) if state.held is not None else None,
        on_return=lambda: state.health.recovered(name),
        on_model=lambda model: state.health.recovered(name, model),
    ).start()


def runs_here(config: schema.Backend) -> bool:
    """Whether ``tollgate serve`` runs it as a child process."""
    match config:
        case schema.EngineBackend():
            return config.launch
        case schema.SidecarBackend():
            return True
    return False


def _openai_kind(config: schema.OpenAIBackend) -> Callable[..., OpenAIBackend]:
    if config.inference_pool:
        return InferencePoolBackend
    if config.priority is not None:
        return partial(PrioritisedBackend, lower_first=config.priority == "lower_first")
    return OpenAIBackend


def _secret(key: SecretStr | None) -> str | None:
    return key.get_secret_value() if key is not None else None
