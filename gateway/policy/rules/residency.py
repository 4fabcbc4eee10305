"""``residency``: regions that nothing is in, and places that would get what must not leave a region.

A place whose region is not stated is in none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gateway.policy.content import list_at, mapping_at, mappings_at
from gateway.policy.problems import Diagnostic, KeyPath, listed, suggestion
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import InjectionGuard, Policy, ToxicityGuard, WebhookGuard


def nothing_in_region(draft: Draft) -> Findings:
    backends = mappings_at(draft.content, "backends").values()
    known = tuple(dict.fromkeys(str(backend["region"]) for backend in backends if "region" in backend))
    for path, residency in _written(draft.content):
        for index, region in enumerate(residency):
            if isinstance(region, str) and region not in known:
                message = f"no backend is in region '{region}'{suggestion(region, known)}"
                yield Diagnostic((*path, "residency", index), message)


def place_outside(draft: Draft) -> Findings:
    """Stores are shared by all: each must be where anybody's content stays."""
    content = draft.content
    files, ledger = mapping_at(content, "files"), mapping_at(content, "ledger")
    keeps = files.get("enabled", True) or mapping_at(content, "record").get("enabled", False)
    places: Mapping[str, tuple[KeyPath, Any]] = {
        "store": (("store",), content.get("store")),
        "cache_store": (("cache_store",), content.get("cache_store")),
        "ledger": (("ledger", "store"), ledger.get("store")),
        "files": (("files", "store"), files.get("store") if keeps else None),
    }
    regions = mapping_at(content, "regions")
    for place, (path, where) in places.items():
        if not isinstance(where, str) or "://" not in where:
            continue
        region = regions.get(place)
        for owner, residency in _written(content):
            if residency and region not in residency:
                stated = (
                    f"is in region '{region}'" if region is not None else "is in a region that is not stated"
                )
                message = (
                    f"{stated}, and contents of {_owner(owner)} are to stay in {listed([*map(str, residency)])}; write "
                    f"'regions: {{{place}: …}}' if it is there, or name one that is"
                )
                yield Diagnostic(path, message)
                break


def embedder_outside(draft: Draft) -> Findings:
    """Its engine gets everybody's questions."""
    embedder = mapping_at(draft.content, "sidecar").get("embedder")
    if not isinstance(embedder, dict):
        return
    name = str(embedder.get("backend"))
    region = mappings_at(draft.content, "backends").get(name, {}).get("region")
    for owner, residency in _written(draft.content):
        if residency and region not in residency:
            stated = f"in region '{region}'" if region is not None else "in no stated region"
            message = f"'{name}' is {stated}, and contents of {_owner(owner)} are to stay in "
            yield Diagnostic(("sidecar", "embedder", "backend"), message + listed([*map(str, residency)]))
            return


def model_never_served(valid: Valid) -> Findings:
    """Whoever asks for one is refused."""
    policy = valid.policy
    for path, residency in _owners(valid):
        if path[:1] == ("models",):
            names: Collection[str] = (str(path[1]),)
        else:
            names = policy.models
        within = [*map(frozenset, filter(None, (residency, policy.residency)))]
        never = [name for name in names if not _is_served(policy, name, frozenset.intersection(*within))]
        if never:
            message = (
                f"{listed(never)} can never be served: no target, fallback or larger_context of "
                f"{'it' if len(never) == 1 else 'theirs'} is in {listed(residency)}, so that requests are refused"
            )
            yield Diagnostic((*path, "residency"), message)


def guard_outside(valid: Valid) -> Findings:
    """Its texts are not sent there, and ``on_error`` decides."""
    policy = valid.policy
    for name, guard in policy.guards.items():
        judge = guard.judge if isinstance(guard, InjectionGuard | ToxicityGuard) else None
        for path, residency in _owners(valid):
            within = frozenset(residency)
            if isinstance(guard, WebhookGuard) and guard.region not in within:
                where = "no stated region" if guard.region is None else f"'{guard.region}'"
                what = f"its server is in {where}"
            elif judge is not None and not _is_served(policy, judge.model, within):
                what = f"its judge '{judge.model}' is in none of these regions"
            else:
                continue
            whose = f"contents of {_owner(path)} stay in {listed(residency)}"
            message = f"{what}, and {whose}: there 'on_error: {guard.on_error}' decides"
            yield Diagnostic(("guards", name), message)
            break


def shadow_outside(valid: Valid) -> Findings:
    for name, model in valid.policy.models.items():
        if model.shadow is None:
            continue
        other = model.shadow.model
        for path, residency in _owners(valid):
            if path[:1] == ("models",) and path[1] != name:
                continue
            if not _is_served(valid.policy, other, frozenset(residency)):
                message = f"'{other}' gets no copies of what stays in {listed(residency)}, by {_owner(path)}"
                yield Diagnostic(("models", name, "shadow", "model"), message)
                break


def traces_outside(valid: Valid) -> Findings:
    telemetry, region = valid.policy.telemetry, valid.policy.regions.get("telemetry")
    if not telemetry.endpoint or not telemetry.content:
        return
    for path, residency in _owners(valid):
        if region not in residency:
            message = f"traces hold no contents of {_owner(path)}, which stay in {listed(residency)}: the receiver is "
            message += (
                "in no stated region; write 'regions: {telemetry: …}'" if region is None else f"in '{region}'"
            )
            yield Diagnostic(("telemetry", "content"), message)
            break


def region_of_no_place(valid: Valid) -> Findings:
    """What is on this machine is where the gateway is."""
    policy = valid.policy
    elsewhere = {
        "store": policy.store != "memory",
        "cache_store": policy.cache_store not in ("memory", "same"),
        "ledger": policy.ledger.store != "sqlite",
        "files": policy.files.bucket is not None,
        "telemetry": bool(policy.telemetry.endpoint),
    }
    for place in policy.regions:
        if not elsewhere[place]:
            yield Diagnostic(("regions", place), f"has no effect: '{place}' names no server; remove it")


def _written(content: Mapping[str, Any]) -> Iterator[tuple[KeyPath, list[Any]]]:
    """Who has a residency, as it is written."""
    yield (), list_at(content, "residency")
    for section in ("tenants", "models"):
        for name, owner in mappings_at(content, section).items():
            yield (section, name), list_at(owner, "residency")
    for index, key in enumerate(list_at(content, "keys")):
        yield ("keys", index), list_at(key, "residency")


def _owners(valid: Valid) -> Iterator[tuple[KeyPath, tuple[str, ...]]]:
    policy = valid.policy
    if not policy.has_residency:
        return
    if policy.residency:
        yield (), policy.residency
    for name, tenant in policy.tenants.items():
        if tenant.residency:
            yield ("tenants", name), tenant.residency
    for name, model in policy.models.items():
        if model.residency:
            yield ("models", name), model.residency
    for index, key in enumerate(valid.keys):
        if key.residency:
            yield ("keys", index), key.residency


def _owner(path: KeyPath) -> str:
    if not path:
        return "everybody"
    return f"{str(path[0]).removesuffix('s')} '{path[1]}'" if path[0] != "keys" else f"keys[{path[1]}]"


def _is_served(policy: Policy, name: str, within: frozenset[str]) -> bool:
    """Whether a target in these regions serves the model, or one that may answer in its place."""
    to_check = [policy.resolve(name) or name]
    for one in to_check:  # grows while it is read
        model = policy.models[one]
        own = within.intersection(model.residency) if model.residency else within
        if any(policy.backends[target.backend].region in own for target in model.targets):
            return True
        following = (*(step.model for step in model.cascade), *model.fallbacks, model.larger_context)
        to_check += [other for other in following if other is not None and other not in to_check]
    return False
