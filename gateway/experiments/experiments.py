"""The experiments of a policy, and who is in which arm of which.

A request is part of one experiment at most: the first in the policy's order that is about such requests and has the
request's key in its ``share``. So a difference between two arms has one cause, and the ledger's row one arm. The share
and the arms of an experiment are drawn by its own name, independently of all others'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import orjson

from gateway.experiments.assignment import arm_of
from gateway.policy.schema import Experiment, ExperimentArm, Policy, PromptPlace
from gateway.types import Call

Key = Literal["user", "conversation", "tenant"]
KeyOf = Callable[[Call, Key], bytes]
Serves = Callable[[Call, str], bool]
"""Whether a model may have a call."""
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Arm:
    """What those get whose arm it is."""

    experiment: str
    run: str
    """The experiment's name with a digest of what is compared: what was seen of other contents is not counted."""
    name: str
    id: str
    """Different wherever an answer might be: for caches."""
    model: str | None
    prompt: str | None
    """Its name; ``text`` is what it says, ``digest`` the beginning of its SHA-256."""
    text: str
    digest: str
    place: PromptPlace


@dataclass(frozen=True, slots=True)
class Assigned:
    arm: Arm
    assignee: str
    """The hash of what keeps the arm."""


class Experiments:
    """Those of one policy."""

    def __init__(self, policy: Policy, serves: Serves = lambda call, model: True) -> None:
        self._policy = policy
        self._serves = serves
        guards = ""
        if policy.experiments:
            guards = _digest({name: one.model_dump(mode="json") for name, one in policy.guards.items()})
        self.arms: dict[str, dict[str, Arm]] = {
            name: _arms(policy, name, one, guards) for name, one in policy.experiments.items()
        }
        """By experiment and name."""
        self.by_id: dict[str, ExperimentArm] = {
            arm.id: policy.experiments[name].arms[arm.name]
            for name, arms in self.arms.items()
            for arm in arms.values()
        }
        """As the policy has them, by ``Call.arm``."""
        self._by_model: dict[str, tuple[tuple[str, Experiment], ...]] = {
            model: tuple(
                (name, one)
                for name, one in policy.experiments.items()
                if not one.where.models or model in map(policy.resolve, one.where.models)
            )
            for model in policy.models
        }

    def assigned(self, call: Call, key_of: KeyOf) -> Assigned | None:
        """The arm of a call that nothing has changed yet; None where it is part of no experiment."""
        for name, one in self._by_model.get(call.model, ()):
            if one.where.has(call.principal.tenant, call.route) and self._is_fit(call, name):
                key = key_of(call, one.key)
                if is_part(name, key, one.share):
                    return Assigned(self.arms[name][arm_of(name, key, one.weights)], key.hex())
        return None

    def _is_fit(self, call: Call, name: str) -> bool:
        """Whether the call could have each of the arms: text is generated, for somebody who waits, there is a place
        for a system prompt, and the model of each arm may have it."""
        request, one = call.request, self._policy.experiments[name]
        if not request.generates or call.line is not None:
            return False
        if request.messages is None and one.has_prompts:
            return False
        return all(arm.model is None or self._serves(call, arm.model) for arm in self.arms[name].values())

    def passed_over(self, call: Call, assigned: str) -> Iterator[tuple[str, str]]:
        """The experiments that ``call`` is not part of, and why not, for people. ``assigned``: the one that it is part
        of, if any."""
        policy, done = self._policy, False
        asked = policy.resolve(call.request.model)
        for name, one in policy.experiments.items():
            if name == assigned:
                done = True
            elif one.where.models and asked not in map(policy.resolve, one.where.models):
                yield name, f"it is about {', '.join(one.where.models)}"
            elif not one.where.has(call.principal.tenant, call.route):
                yield name, "it is about other tenants, or other paths"
            elif not self._is_fit(call, name):
                yield name, "not all of its arms could be had: by what is asked for, or by where it may go"
            elif done:
                yield name, f"it is part of '{assigned}', which comes before"
            else:
                yield name, f"this {one.key} is not in its share of {one.share:g}"


def is_part(experiment: str, key: bytes, share: float) -> bool:
    """Whether ``key`` is in the ``share`` (0 to 1) that an experiment is about. A share that grows loses none."""
    if share >= 1.0:
        return True
    return arm_of(f"share of {experiment}", key, {"in": share, "out": 1.0 - share}) == "in"


def run_of(policy: Policy, name: str) -> str:
    """The name under which results are kept. Other arms, weights or contents, another key or place are another run,
    and so are prompts of the same name that say something else; keys keep their arms all the same."""
    one = policy.experiments[name]
    compared = one.model_dump(mode="json", exclude={"share", "metrics"}, exclude_defaults=True)
    texts = {arm.prompt: policy.prompts.get(arm.prompt, "") for arm in one.arms.values() if arm.prompt}
    named = {guard for arm in one.arms.values() for guard in (*arm.guards, *arm.without)}
    guards = {
        guard: policy.guards[guard].model_dump(mode="json", exclude_defaults=True) for guard in sorted(named)
    }
    return f"{name}#{_digest([compared, texts, guards])}"


def _arms(policy: Policy, name: str, one: Experiment, guards: str) -> dict[str, Arm]:
    run = run_of(policy, name)
    found = {}
    for arm_name, arm in one.arms.items():
        text = policy.prompts[arm.prompt] if arm.prompt is not None else ""
        found[arm_name] = Arm(
            experiment=name,
            run=run,
            name=arm_name,
            id=f"{run}/{arm_name}/{guards}",
            model=policy.resolve(arm.model) if arm.model is not None else None,
            prompt=arm.prompt,
            text=text,
            digest=sha256(text.encode()).hexdigest()[:_DIGITS] if arm.prompt is not None else "",
            place=arm.prompt_place,
        )
    return found


def _digest(value: object) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGITS]
