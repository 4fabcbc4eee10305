"""``experiments`` and ``prompts``: names that are none, arms that weaken a floor, comparisons that compare nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gateway.policy.content import list_at, mapping_at, mappings_at
from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import Experiment, Policy


def _arms(content: Mapping[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any], dict[str, Any]]]:
    """Of each arm its key path, the arm, and its experiment."""
    for name, one in mappings_at(content, "experiments").items():
        for arm, written in mappings_at(one, "arms").items():
            yield ("experiments", name, "arms", arm), written, one


def unknown_prompt(draft: Draft) -> Findings:
    known = tuple(mapping_at(draft.content, "prompts"))
    for path, arm, _ in _arms(draft.content):
        name = arm.get("prompt")
        if isinstance(name, str) and name not in known:
            hint = suggestion(name, known) or f"; write it under 'prompts', or into a file {name}.prompt.md"
            yield Diagnostic((*path, "prompt"), f"no prompt is named '{name}'{hint}")


def unknown_guard(draft: Draft) -> Findings:
    guards = tuple(mapping_at(draft.content, "guards"))
    for path, arm, _ in _arms(draft.content):
        for key in ("guards", "without"):
            for index, name in enumerate(list_at(arm, key)):
                if isinstance(name, str) and name not in guards:
                    message = f"no guard is named '{name}'{suggestion(name, guards)}"
                    yield Diagnostic((*path, key, index), message)


def guard_of_its_own_tenants(draft: Draft) -> Findings:
    """A guard that is for some tenants, keys or nobody but other arms is not an arm's to leave out."""
    guards = mappings_at(draft.content, "guards")
    named = {
        name for _, arm, _ in _arms(draft.content) for name in list_at(arm, "guards") if isinstance(name, str)
    }
    for path, arm, _ in _arms(draft.content):
        for index, name in enumerate(list_at(arm, "without")):
            guard = guards.get(name) if isinstance(name, str) else None
            if guard is None:
                continue
            at = (*path, "without", index)
            if name in named:
                yield Diagnostic(
                    at, f"'{name}' looks after arms that name it under 'guards' only; remove it here"
                )
                continue
            for key in ("tenants", "keys"):
                if list_at(guard, key) not in ([], ["*"]):
                    message = (
                        f"'{name}' was written for certain {key}, whom an experiment does not take it from; leave "
                        f"these out by the experiment's 'where', and write a guard of the arms' own"
                    )
                    yield Diagnostic(at, message, ("guards", name, key))


def model_of_every_request(draft: Draft) -> Findings:
    """Another model in the place of whichever is asked for."""
    for path, arm, one in _arms(draft.content):
        if isinstance(arm.get("model"), str) and not list_at(mapping_at(one, "where"), "models"):
            message = (
                "takes the place of every model there is; name those that it is compared with: "
                "'where: {models: […]}'"
            )
            yield Diagnostic((*path, "model"), message)


def weaker_arm(valid: Valid) -> Findings:
    """An arm that goes without a guard, and has none of the same kind."""
    policy = valid.policy
    for name, one in policy.experiments.items():
        for arm_name, arm in one.arms.items():
            given = [policy.guards[guard] for guard in arm.guards]
            kinds = {guard.kind for guard in given if guard.tenants == guard.keys == ("*",)}
            for index, guard in enumerate(arm.without):
                if (kind := policy.guards[guard].kind) not in kinds:
                    message = (
                        f"leaves those of this arm without any guard of kind '{kind}'; name one under 'guards', "
                        "or let it be so"
                    )
                    yield Diagnostic(("experiments", name, "arms", arm_name, "without", index), message)


def arms_alike(valid: Valid) -> Findings:
    """Two that differ in nothing: good to see what chance does, and nothing else."""
    for name, one in valid.policy.experiments.items():
        seen: dict[str, str] = {}
        for arm_name, arm in one.arms.items():
            what = arm.model_dump_json(exclude={"weight"})
            if (other := seen.setdefault(what, arm_name)) != arm_name:
                yield Diagnostic(
                    ("experiments", name, "arms", arm_name),
                    f"is the same as '{other}': whatever differs between them is chance",
                )


def experiment_never_reached(valid: Valid) -> Findings:
    """All of its requests are part of one before it."""
    policy = valid.policy
    before: list[tuple[str, Experiment]] = []
    for name, one in policy.experiments.items():
        for other, earlier in before:
            if _covers(policy, earlier, one):
                message = (
                    f"is never reached: '{other}', before it, is about all of its requests. Give that one a "
                    "'share', or another 'where'"
                )
                yield Diagnostic(("experiments", name), message)
                break
        before.append((name, one))


def _covers(policy: Policy, earlier: Experiment, later: Experiment) -> bool:
    if earlier.share < 1.0 or earlier.has_prompts > later.has_prompts:
        return False
    models = {*map(policy.resolve, earlier.where.models)}
    return (
        (not models or (bool(later.where.models) and {*map(policy.resolve, later.where.models)} <= models))
        and (
            earlier.where.tenants == later.where.tenants
            or any(
                all(fnmatchcase(one, pattern) for one in later.where.tenants)
                for pattern in earlier.where.tenants
            )
        )
        and (
            earlier.where.routes is None
            or (later.where.routes is not None and {*later.where.routes} <= {*earlier.where.routes})
        )
    )


def place_of_no_prompt(valid: Valid) -> Findings:
    for name, one in valid.policy.experiments.items():
        for arm_name, arm in one.arms.items():
            if "prompt_place" in arm.model_fields_set and arm.prompt is None:
                at = ("experiments", name, "arms", arm_name, "prompt_place")
                yield Diagnostic(at, "has no effect without 'prompt'")


def prompt_of_no_arm(valid: Valid) -> Findings:
    policy = valid.policy
    used = {arm.prompt for one in policy.experiments.values() for arm in one.arms.values()}
    for name in policy.prompts:
        if name not in used:
            yield Diagnostic(("prompts", name), "is used by no arm of an experiment")


def results_nowhere(valid: Valid) -> Findings:
    if valid.policy.experiments and not valid.policy.ledger.enabled:
        message = "have no results with 'ledger: {enabled: false}', which is where they are"
        yield Diagnostic(("experiments",), message)


def rolled_out_meanwhile(valid: Valid) -> Findings:
    """An arm's model that changes while it is compared."""
    policy = valid.policy
    for name, one in policy.experiments.items():
        asked = {*map(policy.resolve, one.where.models or policy.models)}
        asked |= {policy.resolve(arm.model) for arm in one.arms.values() if arm.model is not None}
        for model in policy.models:
            if model in asked and policy.models[model].rollout is not None:
                message = (
                    f"compares requests to '{model}', which is rolling out another target meanwhile: each arm has its "
                    "share of that. End one before the other begins"
                )
                yield Diagnostic(("experiments", name), message)
