"""``models``: names that refer to others, and what has no effect on a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.policy.content import list_at, mapping_at, mappings_at
from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import Model, Policy, Timeouts


def unknown_backend(draft: Draft) -> Findings:
    backends = tuple(mapping_at(draft.content, "backends"))
    for name, model in mapping_at(draft.content, "models").items():
        for index, target in enumerate(list_at(model, "targets")):
            backend = target.get("backend") if isinstance(target, dict) else None
            if isinstance(backend, str) and backend not in backends:
                yield Diagnostic(
                    ("models", name, "targets", index, "backend"),
                    f"no backend is named '{backend}'{suggestion(backend, backends)}",
                )
        backend = mapping_at(mapping_at(model, "rollout"), "to").get("backend")
        if isinstance(backend, str) and backend not in backends:
            yield Diagnostic(
                ("models", name, "rollout", "to", "backend"),
                f"no backend is named '{backend}'{suggestion(backend, backends)}",
            )


def name_taken(draft: Draft) -> Findings:
    """A name or alias belongs to one model."""
    models = mapping_at(draft.content, "models")
    taken: dict[str, KeyPath] = {name: ("models", name) for name in models}
    for name, model in models.items():
        for index, alias in enumerate(list_at(model, "aliases")):
            path: KeyPath = ("models", name, "aliases", index)
            if isinstance(alias, str) and (first := taken.setdefault(alias, path)) != path:
                yield Diagnostic(path, f"'{alias}' is the name of another model, or given twice", first)


def unknown_model(draft: Draft) -> Findings:
    """Models that others refer to exist, are not the model itself, and have targets where a cascade cannot be used."""
    models = mapping_at(draft.content, "models")
    names = tuple(models)
    for path, word in _references(draft.content):
        if word not in models:
            aliased = next(
                (name for name, model in models.items() if word in list_at(model, "aliases")), None
            )
            hint = f"; write '{aliased}', of which it is an alias" if aliased else suggestion(word, names)
            yield Diagnostic(path, f"no model is named '{word}'{hint}")
        elif path[0] == "models" and word == path[1]:
            yield Diagnostic(path, "is the model itself; name another one")
        elif path[0] in ("guards", "evaluation"):
            if list_at(models[word], "cascade"):
                yield Diagnostic(path, f"'{word}' is a cascade; name a model with targets")
        elif path[2] == "cascade" and list_at(models[word], "cascade"):
            yield Diagnostic(path, f"'{word}' is a cascade itself; a step should be a model with targets")
        elif path[2] in ("fallbacks", "larger_context") and list_at(models[word], "cascade"):
            message = f"'{word}' is a cascade, which cannot replace another model; name models with targets"
            yield Diagnostic(path, f"{message}, such as its last step's")
        elif path[0] == "tiers" and list_at(models[word], "cascade"):
            yield Diagnostic(
                path, f"'{word}' is a cascade; name one model with targets, such as its first step's"
            )


def _references(content: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    found: list[tuple[KeyPath, Any]] = []
    for name, model in mapping_at(content, "models").items():
        at = ("models", name)
        found += [((*at, "fallbacks", i), word) for i, word in enumerate(list_at(model, "fallbacks"))]
        found += [
            ((*at, "cascade", i, "model"), step.get("model"))
            for i, step in enumerate(list_at(model, "cascade"))
            if isinstance(step, dict)
        ]
        if isinstance(model, dict):
            found.append(((*at, "larger_context"), model.get("larger_context")))
        found.append(((*at, "shadow", "model"), mapping_at(model, "shadow").get("model")))
    for name, tier in mapping_at(content, "tiers").items():
        path = ("tiers", name, "on_saturation", "to")
        found.append((path, mapping_at(tier, "on_saturation").get("to")))
    found += [
        (("guards", name, "judge"), guard.get("judge"))
        for name, guard in mappings_at(content, "guards").items()
    ]
    found += [
        (("guards", name, "judge", "model"), mapping_at(guard, "judge").get("model"))
        for name, guard in mappings_at(content, "guards").items()
    ]
    found.append((("evaluation", "judge"), mapping_at(content, "evaluation").get("judge")))
    for name, experiment in mappings_at(content, "experiments").items():
        found += [
            (("experiments", name, "arms", arm, "model"), written.get("model"))
            for arm, written in mappings_at(experiment, "arms").items()
        ]
        found += [
            (("experiments", name, "where", "models", i), word)
            for i, word in enumerate(list_at(mapping_at(experiment, "where"), "models"))
        ]
    yield from ((path, word) for path, word in found if isinstance(word, str))


def unknown_region(draft: Draft) -> Findings:
    """A preferred region has a backend, though perhaps none that serves the model yet."""
    backends = mapping_at(draft.content, "backends").values()
    known = tuple(dict.fromkeys(str(b["region"]) for b in backends if isinstance(b, dict) and "region" in b))
    for name, model in mapping_at(draft.content, "models").items():
        for index, region in enumerate(list_at(model, "regions")):
            if isinstance(region, str) and region not in known:
                message = f"no backend is in region '{region}'{suggestion(region, known)}"
                yield Diagnostic(("models", name, "regions", index), message)


def no_larger_context(valid: Valid) -> Findings:
    policy = valid.policy
    for name, model in policy.models.items():
        larger = policy.models.get(model.larger_context or "")
        if larger is None or model.context is None or larger.context is None:
            continue
        if larger.context <= model.context:
            message = (
                f"'{model.larger_context}' has a context of {larger.context}, which is not larger than this "
                f"model's {model.context}"
            )
            yield Diagnostic(("models", name, "larger_context"), message)


def fallbacks_in_a_circle(valid: Valid) -> Findings:
    """Each model of a chain is asked once, so that the entry which leads back to its beginning does nothing."""
    models = valid.policy.models
    for name, model in models.items():
        for index, fallback in enumerate(model.fallbacks):
            # Told once for a circle: at the model of it that is written last.
            circle = _way(models, fallback, name)
            if circle and name == max(circle, key=[*models].index):
                message = (
                    f"leads back to '{name}' ({' → '.join((name, *circle))}), which has been asked by then; "
                    "models that fall back on each other do so once"
                )
                yield Diagnostic(("models", name, "fallbacks", index), message)


def _way(models: Mapping[str, Model], start: str, end: str) -> tuple[str, ...]:
    """The shortest chain of fallbacks from ``start`` to ``end``; empty where there is none."""
    ways: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    for way in ways:  # grows while it is read
        if way[-1] == end:
            return way
        following = [one for one in models[way[-1]].fallbacks if one not in seen]
        seen.update(following)
        ways += [(*way, one) for one in following]
    return ()


def timeout_beyond_total(valid: Valid) -> Findings:
    for name, model in valid.policy.models.items():
        yield from _late(("models", name, "timeouts"), model.timeouts)
        for index, target in enumerate(model.targets):
            if target.timeouts is not None:
                yield from _late(("models", name, "targets", index, "timeouts"), target.timeouts)


def _late(path: KeyPath, timeouts: Timeouts) -> Findings:
    for key in ("connect", "first_token", "idle"):
        if key in timeouts.model_fields_set and getattr(timeouts, key) > timeouts.total:
            message = (
                f"has no effect: {getattr(timeouts, key):g}s is beyond 'total', which ends the answer after "
                f"{timeouts.total:g}s"
            )
            yield Diagnostic((*path, key), message)


def spill_over_to_nobody(valid: Valid) -> Findings:
    for name, model in valid.policy.models.items():
        if model.spill_over and not model.fallbacks:
            yield Diagnostic(("models", name, "spill_over"), "has no effect without 'fallbacks'; name some")


def beyond_no_context(valid: Valid) -> Findings:
    """What to do with too long a prompt, of a model of which nobody says what is too long."""
    for name, model in valid.policy.models.items():
        for key in ("over_context", "larger_context"):
            if (
                key in model.model_fields_set
                and model.context is None
                and not _is_told(valid.policy, model, key)
            ):
                message = "has no effect without 'context', the tokens that the model takes; write it"
                yield Diagnostic(("models", name, key), message)


def _is_told(policy: Policy, model: Model, key: str) -> bool:
    """A server that refuses a prompt as too long is reason enough to ask the larger model."""
    return key == "larger_context" and bool(model.targets)


def output_beyond_context(valid: Valid) -> Findings:
    for name, model in valid.policy.models.items():
        if model.context is not None and model.max_output is not None and model.max_output > model.context:
            message = f"{model.max_output} tokens never fit into the model's context of {model.context}, prompt and all"
            yield Diagnostic(("models", name, "max_output"), message)


def weight_of_least_loaded(valid: Valid) -> Findings:
    for name, model in valid.policy.models.items():
        if model.select != "least_loaded" or len(model.targets) == 1:
            continue
        for index, target in enumerate(model.targets):
            if "weight" in target.model_fields_set and target.weight != 1.0:
                message = (
                    "is no share of the traffic with 'select: least_loaded', where a target's requests in flight are "
                    "divided by it; write 'select: weighted' for shares, or remove it"
                )
                yield Diagnostic(("models", name, "targets", index, "weight"), message)


def retry_of_one_attempt(valid: Valid) -> Findings:
    for name, model in valid.policy.models.items():
        for key in sorted(model.retry.model_fields_set - {"attempts"} if model.retry.attempts == 1 else ()):
            message = "has no effect with 'attempts: 1', after which nothing is tried again"
            yield Diagnostic(("models", name, "retry", key), message)


def given_twice(valid: Valid) -> Findings:
    """The same target or fallback again, as lines that were copied are."""
    for name, model in valid.policy.models.items():
        places = [f"{target.backend}/{target.model}" for target in model.targets]
        for key, values in (("targets", places), ("fallbacks", list(model.fallbacks))):
            for index, value in enumerate(values):
                if value in values[:index]:
                    more = "; give one a 'weight'" if key == "targets" else ""
                    message = f"is entry {values.index(value)} again{more}"
                    yield Diagnostic(("models", name, key, index), message)


def shared_prompts_of_no_model(valid: Valid) -> Findings:
    policy = valid.policy
    if policy.shared_prompts and all(one.prefix_sharing != "system" for one in policy.models.values()):
        message = "has no effect: no model has 'prefix_sharing: system'"
        yield Diagnostic(("shared_prompts",), message)


def rollout_to_itself(draft: Draft) -> Findings:
    """A roll-out leads to a target that the model does not have yet."""
    for name, model in mapping_at(draft.content, "models").items():
        to = mapping_at(mapping_at(model, "rollout"), "to")
        place = (to.get("backend"), to.get("model"))
        for target in list_at(model, "targets"):
            if isinstance(target, dict) and (target.get("backend"), target.get("model")) == place:
                message = (
                    "is one of the model's targets already: take it out there, or, where the roll-out is over, remove "
                    "'rollout'"
                )
                yield Diagnostic(("models", name, "rollout", "to"), message)
                break


def split_of_no_weights(valid: Valid) -> Findings:
    for name, model in valid.policy.models.items():
        if "split_by" not in model.model_fields_set:
            continue
        if len(model.targets) < 2:
            message = "has no effect on a model with one target"
        elif model.select != "weighted":
            message = f"has no effect with 'select: {model.select}', which chooses the target by other things"
        else:
            continue
        yield Diagnostic(("models", name, "split_by"), message)


def steps_too_short(valid: Valid) -> Findings:
    """A rollout whose only step is everything, which no guard watches."""
    for name, model in valid.policy.models.items():
        if model.rollout is not None and len(model.rollout.steps) == 1:
            message = (
                "sends everything at once, so that no guard can compare; begin smaller, such as [1, 25, 100]"
            )
            yield Diagnostic(("models", name, "rollout", "steps"), message)
