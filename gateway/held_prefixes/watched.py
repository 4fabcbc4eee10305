"""Of a policy: at which models it is known what servers hold, where these publish it, and whom to ask for token ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.held_prefixes.prompt_tokens import Server
from gateway.held_prefixes.subscriber import Publisher
from gateway.policy.members import Members
from gateway.policy.schema import EngineBackend, KvEvents, OpenAIBackend, Policy, Target


@dataclass(frozen=True, slots=True)
class Group:
    """The replicas of one target, which have one tokenizer, and hash salts in one way."""

    model: str
    """As they know it."""
    servers: tuple[Server, ...]
    lines: Mapping[str, tuple[str, ...]]
    """By replica, the names of its publishers: one a rank. Empty for bundled engines, whose digest says it."""
    names: tuple[str, ...]


def groups_of(
    policy: Policy, members: Members, among: Collection[str] | None = None
) -> dict[str, tuple[Group, ...]]:
    """By model, those of its targets that tell. ``policy`` has its replicas as backends; ``among``: whose targets
    count, where not all do."""
    found: dict[str, tuple[Group, ...]] = {}
    for name, model in policy.models.items():
        if model.select == "score":
            groups = tuple(
                group
                for target in model.targets
                if among is None or target.backend in among
                if (group := _group(policy, members, target)) is not None
            )
            if groups:
                found[name] = groups
    return found


def publishers_of(policy: Policy, groups: Mapping[str, tuple[Group, ...]]) -> dict[str, Publisher]:
    """By the names in ``Group.lines``."""
    found: dict[str, Publisher] = {}
    for group in {id(one): one for its in groups.values() for one in its}.values():
        for replica, lines in group.lines.items():
            config = policy.backends[replica]
            if isinstance(config, OpenAIBackend) and config.kv_events is not None:
                found.update(zip(lines, _publishers(config.base_url, config.kv_events), strict=True))
    return found


def _publishers(base_url: str, events: KvEvents) -> Iterator[Publisher]:
    host = urlsplit(base_url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    for rank in range(events.ranks):
        again = events.replay_port
        yield Publisher(
            f"tcp://{host}:{events.port + rank}",
            events.topic,
            None if again is None else f"tcp://{host}:{again + rank}",
        )


def _group(policy: Policy, members: Members, target: Target) -> Group | None:
    names = tuple(one.name for one in members.get(target.backend, ())) or (target.backend,)
    servers, lines = [], {}
    for name in names:
        match policy.backends.get(name):
            case OpenAIBackend(kv_events=KvEvents() as events, replicas=None) as config:
                key = config.api_key.get_secret_value() if config.api_key is not None else ""
                servers.append(_server(config.base_url, {"authorization": f"Bearer {key}"} if key else {}))
                ranks = events.ranks
                lines[name] = (name,) if ranks == 1 else tuple(f"{name}#{rank}" for rank in range(ranks))
            case EngineBackend(replicas=None) as config:
                servers.append(_server(config.base_url, {}))
    return Group(target.model, tuple(servers), lines, names) if servers else None


def _server(base_url: str, headers: Mapping[str, str]) -> Server:
    return Server(base_url.rstrip("/").removesuffix("/v1") + "/tokenize", headers)
